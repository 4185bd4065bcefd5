// SPDX-License-Identifier: Apache-2.0
// Builds the panels of a run from the series it has.

import { LineChart, type Curve } from "../charts/line_chart";
import type { Panel, PanelContext } from "../charts/panel";
import type { SeriesInfo } from "../data/types";
import { seconds, words } from "../ui/format";
import { type ChartOptions, type Contexts, curve, menu, withSeries } from "./panel_tools";
import { attentionPanels, expertPanels } from "./layer_panels";

export interface Section {
  title: string;
  panels: Panel[];
}

// Metric name -> text in the menu; only metrics of the run are offered.
const OPTIMIZER_STATISTICS: Record<string, string> = {
  train_update_rms: "update RMS",
  train_update_param_ratio: "update / parameter",
  train_update_abs_max: "update |max|",
  train_grad_norm: "gradient norm",
  train_grad_clip_ratio: "clip factor",
  train_param_norm: "parameter norm",
  train_param_abs_max: "parameter |max|",
  train_update_withheld: "values withheld as not finite",
  train_momentum_norm: "momentum norm",
  train_momentum_abs_max: "momentum |max|",
  train_momentum_mean: "momentum mean",
  train_momentum_variance: "momentum variance",
  train_momentum_gradient_cosine: "cosine of momentum and gradient",
  train_momentum_stuck_ratio: "momentum stuck in 8-bit codes",
  train_adam_v_mean: "Adam v mean",
  train_adam_v_variance: "Adam v variance",
  train_adam_v_abs_max: "Adam v |max|",
  train_adam_v_tiny_ratio: "Adam v below 10 epsilon",
  train_adam_v_decay_saturation: "Adam v decay saturation",
  train_adam_rms_t: "Adam RMS_t",
  train_adam_staleness_ratio: "Adam staleness",
  train_adam_v_stuck_ratio: "Adam v stuck in 8-bit codes",
  train_muon_direction_norm: "Muon direction norm",
  train_muon_effective_rank_ratio: "Muon effective rank",
  train_muon_effective_rank_min_ratio: "Muon effective rank, smallest",
  train_muon_orthogonality_error: "Muon orthogonality error",
  train_muon_orthogonality_error_max: "Muon orthogonality error, largest",
  train_muon_nonfinite_blocks: "Muon non-finite matrices",
  train_muon_recomputed_blocks: "Muon recomputed matrices",
};

const PHASES = [
  "data", "forward", "backward", "expert_comm", "reduce", "verdict", "optimizer", "gather", "checkpoint", "other",
];

export function buildSections(contexts: Contexts): Section[] {
  return [
    { title: "Training", panels: trainingPanels(contexts) },
    { title: "Optimizer", panels: optimizerPanels(contexts) },
    { title: "Attention", panels: attentionPanels(contexts) },
    { title: "Experts", panels: expertPanels(contexts) },
  ].filter((section) => section.panels.length > 0);
}

function trainingPanels({ lines, onVisible }: Contexts): Panel[] {
  const { model } = lines;
  const chart = (options: ChartOptions) => new LineChart(options, lines, onVisible);
  const named = (...pairs: [string, string][]) => () =>
    pairs.flatMap(([label, name]) => curve(label, model.catalog.one(name)));
  const panels = [
    chart({ id: "loss", title: "Loss", unit: "nats per token",
      curves: named(["loss", "train_loss_nats"], ["largest local", "train_loss_local_max_nats"]) }),
    chart({ id: "grad_norm", title: "Gradient norm", unit: "before clipping",
      curves: named(["norm", "train_grad_norm"]) }),
    chart({ id: "learning_rate", title: "Learning rate", unit: "",
      curves: named(["rate", "train_lr"]) }),
    chart({ id: "tokens", title: "Throughput", unit: "tokens per second",
      curves: named(["tokens/s", "train_tokens_per_second"]) }),
    chart({ id: "clip", title: "Clip factor and skips", unit: "1 = untouched",
      curves: named(["clip factor", "train_grad_clip_ratio"], ["step skipped", "train_step_skipped"]) }),
    chart({ id: "interventions", title: "Broken values and clipped heads", unit: "per step",
      curves: named(["NaN or infinite gradients", "train_nonfinite_count"], ["QK-clipped heads", "train_qkclip_heads"]) }),
    chart({ id: "step_time", title: "Step time", unit: "by phase", format: seconds, wide: true,
      curves: () => stepTimeCurves(lines), tools: () => rankTool(lines) }),
  ];
  return withSeries(panels);
}

function chosenRank({ model, view }: PanelContext): number {
  const ranks = model.catalog.all("train_step_seconds").map((info) => info.rank);
  const wanted = Number(view.choice("rank", String(ranks[0] ?? 0)));
  return ranks.includes(wanted) ? wanted : (ranks[0] ?? 0);
}

function stepTimeCurves(context: PanelContext): Curve[] {
  const { catalog } = context.model;
  const rank = chosenRank(context);
  return [
    ...catalog.ofRank("train_step_seconds", rank).slice(0, 1).flatMap((info) => curve("whole step", info)),
    ...inStepOrder(catalog.ofRank("train_phase_seconds", rank)).flatMap((info) => curve(words(info.group), info)),
    ...catalog.ofRank("train_telemetry_seconds", rank).slice(0, 1).flatMap((info) => curve("telemetry", info)),
  ];
}

// In the order of a step; phases unknown to this page come last.
function inStepOrder(phases: SeriesInfo[]): SeriesInfo[] {
  const place = ({ group }: SeriesInfo) => (PHASES.includes(group) ? PHASES.indexOf(group) : PHASES.length);
  return [...phases].sort((a, b) => place(a) - place(b));
}

function rankTool(context: PanelContext): HTMLElement[] {
  const ranks = context.model.catalog.all("train_step_seconds").map((info) => String(info.rank));
  return ranks.length < 2 ? [] : [menu(context, "rank", "Rank", String(chosenRank(context)),
    ranks.map((rank) => [rank, `rank ${rank}`]))];
}

function optimizerPanels({ lines, onVisible }: Contexts): Panel[] {
  const defaults = ["train_update_rms", "train_update_param_ratio"];
  return withSeries(defaults.map((fallback, i) => statisticChart(lines, `statistic${i + 1}`, fallback, onVisible)));
}

function statisticChart(context: PanelContext, id: string, fallback: string, onVisible: () => void): LineChart {
  const { model, view } = context;
  const offered = () => Object.keys(OPTIMIZER_STATISTICS).filter((name) => model.catalog.grouped(name).length > 0);
  const chosen = () => {
    const wanted = view.choice(id, fallback);
    return offered().includes(wanted) ? wanted : (offered()[0] ?? wanted);
  };
  return new LineChart({
    id, title: "By parameter group", unit: "", lateByOne: () => !chosen().startsWith("train_grad_"),
    curves: () => model.catalog.grouped(chosen()).flatMap((info) => curve(words(info.group), info)),
    tools: () => [menu(context, id, "Statistic", chosen(),
      offered().map((name) => [name, OPTIMIZER_STATISTICS[name] ?? name]))],
  }, context, onVisible);
}
