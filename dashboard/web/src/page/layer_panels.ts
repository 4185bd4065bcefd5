// SPDX-License-Identifier: Apache-2.0
// Panels of attention layers and of experts.

import { Heatmap } from "../charts/heatmap";
import { LineChart } from "../charts/line_chart";
import { MatrixPanel } from "../charts/matrix_panel";
import { divergingColor, rampColor, rampCss } from "../charts/palette";
import type { Panel } from "../charts/panel";
import { modeText, summarise } from "../data/attention_modes";
import { columnSum, type Matrix, maxvio, overRowMean, rowSum } from "../data/matrix";
import type { SeriesInfo } from "../data/types";
import { h } from "../ui/dom";
import { number, seconds, si } from "../ui/format";
import { ATTENTION_CURVES, ATTENTION_MAPS, EXPERT_CURVES, EXPERT_TIMES } from "./metric_notes";
import { type Contexts, menu, NoteMenu, withSeries } from "./panel_tools";

const byLayer = { groupOf: (row: SeriesInfo) => row.layer, groupLabel: (row: SeriesInfo) => `L${row.layer}` };
const layerLabel = (row: SeriesInfo) => `layer ${row.layer}`;

export function attentionPanels({ lines, maps, onVisible }: Contexts): Panel[] {
  const heads = new NoteMenu(maps, "attention_map", ATTENTION_MAPS);
  const curves = new NoteMenu(lines, "attention_curve", ATTENTION_CURVES);
  const part = () => (heads.chosen.name === "train_moba_block_share" ? "part" : "h");
  return withSeries([
    modeStrip({ lines, maps, onVisible }),
    new Heatmap({ id: "attention", title: "Attention by head", unit: "layer · head", wide: true,
      rows: () => heads.rows(), label: (row) => `L${row.layer}·${part()}${row.index}`, ...byLayer,
      quiet: () => heads.chosen.name !== "train_attn_logit_max", describe: () => heads.describe(), tools: () => heads.tools() }, maps, onVisible),
    new LineChart({ id: "attention_curve", title: "Attention by layer", unit: "", wide: true, quiet: true,
      curves: () => curves.rows().map((info) => ({ label: layerLabel(info), seriesId: info.id })),
      describe: () => curves.describe(), tools: () => curves.tools() }, lines, onVisible),
  ]);
}

// The mode of each attention layer, full or chosen blocks, over steps; in words for the newest step.
function modeStrip({ maps, onVisible }: Contexts): Panel {
  const { model, cache } = maps;
  const rows = () => model.catalog.all("train_attn_mode");
  const now = () => {
    const step = model.run.last_step;
    const modes = rows().flatMap((row) => {
      const last = cache.track(row.id, model.run.generation)?.lastBucket;
      return last && last.count > 0
        ? [{ layer: row.layer, text: modeText(model, row.layer, model.run.generation, step, last.last) }] : [];
    });
    return modes.length > 0 ? `Now: ${summarise(modes)}` : "";
  };
  return new Heatmap({
    id: "attention_mode", title: "Attention mode", unit: "by layer", wide: true, rows, label: layerLabel, ...byLayer,
    kinds: [{ name: "full", variable: "--mode-full" }, { name: "MoBA (chosen blocks)", variable: "--mode-block" }],
    quiet: () => true, text: (row, value, generation, step) => modeText(model, row.layer, generation, step, value),
    describe: () => ({ text: now(), unit: "by layer" }),
  }, maps, onVisible);
}

export function expertPanels(contexts: Contexts): Panel[] {
  const { lines, onVisible } = contexts;
  const curves = new NoteMenu(lines, "expert_curve", EXPERT_CURVES);
  const times = new NoteMenu(lines, "expert_time", EXPERT_TIMES);
  return [
    loadMatrix(contexts),
    waitMatrix(contexts),
    ...withSeries([
      new LineChart({ id: "expert_curve", title: "Expert parallelism by layer", unit: "", quiet: true,
        curves: () => curves.rows().map((info) => ({ label: layerLabel(info), seriesId: info.id })),
        describe: () => curves.describe(), tools: () => curves.tools() }, lines, onVisible),
      new LineChart({ id: "expert_time", title: "Expert parallelism by rank", unit: "", format: seconds, quiet: true,
        curves: () => times.rows().map((info) => ({ label: `rank ${info.rank}`, seriesId: info.id })),
        describe: () => times.describe(), tools: () => times.tools() }, lines, onVisible),
      ...expertHistories(contexts),
    ]),
  ];
}

function expertHistories({ maps, onVisible }: Contexts): Panel[] {
  const { model, view } = maps;
  const layers = () => model.catalog.layers("train_moe_expert_tokens");
  const chosenLayer = () => {
    const wanted = Number(view.choice("layer", String(layers()[0] ?? 0)));
    return layers().includes(wanted) ? wanted : (layers()[0] ?? 0);
  };
  return [
    new Heatmap({ id: "maxvio", title: "Expert imbalance over steps", unit: "maxvio by layer",
      rows: () => model.catalog.all("train_moe_maxvio_ratio"), label: layerLabel, ...byLayer }, maps, onVisible),
    new Heatmap({ id: "expert_load", title: "Expert load over steps", unit: "tokens per expert",
      rows: () => model.catalog.all("train_moe_expert_tokens").filter((row) => row.layer === chosenLayer()),
      label: (row) => `e${row.index}`, groupOf: () => 0, groupLabel: (row) => `e${row.index}`,
      tools: () => layers().length < 2 ? [] : [menu(maps, "layer", "Layer", String(chosenLayer()),
        layers().map((one) => [String(one), `layer ${one}`]))] }, maps, onVisible),
  ];
}

const LOAD_TOP_MIN = 2; // the least end of the scale, as a multiple of the mean, so that nearly even loads look even

function loadTop(shares: Matrix): number {
  return Math.max(LOAD_TOP_MIN, ...shares.values.filter((value) => !Number.isNaN(value)));
}

// The lower half of the scale is linear from 0 to the mean, the upper half logarithmic from the mean to the top.
function loadPosition(share: number, top: number): number {
  return share <= 1 ? share / 2 : 0.5 + Math.log(share) / Math.log(top) / 2;
}

function loadMatrix({ lines, onVisible }: Contexts): Panel {
  const css = (from: number, to: number) => `linear-gradient(90deg, ${[from, to].map(
    (t) => `rgb(${divergingColor(t).join(" ")})`).join(", ")})`;
  return new MatrixPanel({
    id: "load_matrix", title: "Expert load", unit: "tokens over the layer's mean", metric: "train_moe_expert_tokens",
    rowOf: "layer", what: "Layers × experts at one step; 1× is an even share. Right: maxvio, the largest share minus 1.",
    empty: "No expert loads: a run publishes train_moe_expert_tokens if its ranks call record_expert_counts.",
    picture: (matrix) => {
      const shares = overRowMean(matrix);
      const top = loadTop(shares);
      return { matrix: shares, colorOf: (share) => divergingColor(loadPosition(share, top)), text: (share) => `${number2(share)}×`,
        rowLabel: (layer) => `layer ${layer}`, columnTitle: "expert",
        right: { title: "maxvio", values: matrix.rows.map((_, row) => maxvio(matrix, row)), text: number2 } };
    },
    legend: (matrix) => ramp(["0", css(0, 0.5)], ["1×", css(0.5, 1)], `${number2(loadTop(overRowMean(matrix)))}× the mean`),
    facts: (matrix, { row, column }) => {
      const at = row * matrix.columns.length + column;
      const share = overRowMean(matrix).values[at] ?? NaN;
      return [
        [`layer ${matrix.rows[row]} · expert ${matrix.columns[column]}`, `${si(matrix.values[at] ?? NaN)} tokens`],
        ["over the layer's mean", Number.isNaN(share) ? "–" : `${number(share)}×`],
        ["maxvio of the layer", number(maxvio(matrix, row))]];
    },
  }, lines, onVisible);
}

function waitMatrix({ lines, onVisible }: Contexts): Panel {
  const largest = (matrix: Matrix) => Math.max(0, ...matrix.values.filter((value) => !Number.isNaN(value)));
  return new MatrixPanel({
    id: "wait_matrix", title: "Waits between ranks", unit: "seconds of a step", metric: "train_ep_wait_seconds", rowOf: "rank",
    what: "Time each rank waited for each EP rank in one step. A bright column is a straggler.",
    empty: "No waits: a run publishes train_ep_wait_seconds if its ranks call record_ep and set ModelInfo.expert_ranks.",
    picture: (matrix) => ({
      matrix, colorOf: (value) => rampColor(largest(matrix) > 0 ? value / largest(matrix) : 0), text: seconds,
      rowLabel: (rank) => `rank ${rank}`, columnTitle: "EP rank that is waited for",
      right: { title: "waits", values: matrix.rows.map((_, row) => rowSum(matrix, row)), text: seconds },
      below: { title: "all wait", values: matrix.columns.map((_, column) => columnSum(matrix, column)), text: seconds } }),
    legend: (matrix) => ramp(["0 s", rampCss()], null, seconds(largest(matrix))),
    facts: (matrix, { row, column }) => [
      [`rank ${matrix.rows[row]} for EP rank ${matrix.columns[column]}`, seconds(matrix.values[row * matrix.columns.length + column] ?? NaN)],
      [`rank ${matrix.rows[row]} in all`, seconds(rowSum(matrix, row))],
      [`all for EP rank ${matrix.columns[column]}`, seconds(columnSum(matrix, column))]],
  }, lines, onVisible);
}

function number2(value: number): string {
  return value >= 100 ? String(Math.round(value)) : String(Number(value.toPrecision(2)));
}

// A colour scale: the value at its start, its middle where it has one, and its end.
function ramp(start: [string, string], middle: [string, string] | null, end: string): HTMLElement {
  const part = ([text, css]: [string, string]) => {
    const bar = h("span", { class: middle ? "ramp half" : "ramp" });
    bar.style.background = css;
    return [h("b", {}, text), bar];
  };
  return h("div", { class: "ramp-legend" }, ...part(start), ...(middle ? part(middle) : []), h("b", {}, end));
}
