// SPDX-License-Identifier: Apache-2.0
// A chart of curves over steps. uPlot gives axes, scales and the cursor; the curves are drawn by
// curve_painter straight from the tracks, so generations need no common grid.

import uPlot from "uplot";

import { replacedFrom } from "../data/lineage";
import type { Bucket } from "../data/track";
import type { RunEvent } from "../data/types";
import { h } from "../ui/dom";
import { number, tick } from "../ui/format";
import { color } from "../ui/theme";
import { paintStrand, type Strand } from "./curve_painter";
import { AXIS_BOTTOM, AXIS_LEFT, PAD_RIGHT, PAD_TOP, type Plot, toStep } from "./geometry";
import { Legend } from "./legend";
import { drawMarks, drawReplaced, eventsNear, visibleEvents } from "./marks";
import { curveColor } from "./palette";
import { Panel, type PanelContext } from "./panel";
import { extentOf, type Extent } from "./scale";
import { eventRow, stepRow, Tooltip, valueRow } from "./tooltip";
import { unreportedSteps, valuesAt } from "./values";

export interface Curve {
  label: string;
  seriesId: number;
}

export interface LineChartOptions {
  id: string;
  title: string;
  unit: string;
  wide?: boolean;
  curves: () => Curve[];
  format?: (value: number) => string;
  quiet?: boolean; // NaN means that no value was reported
  lateByOne?: () => boolean; // values are of the preceding update (docs/reference/metrics.md)
  describe?: () => { text: string; unit: string }; // of the current selection
  tools?: () => HTMLElement[];
}

const HEIGHT = 218;
const TOOLTIP_ROWS = 12;

export class LineChart extends Panel {
  private readonly plotElement = h("div", { class: "plot" });
  private readonly tooltip = new Tooltip();
  private readonly legend: Legend;
  private plot: uPlot | null = null;
  private log = false;
  private extent: Extent = { min: 0, max: 1 };
  private marks: RunEvent[] = [];
  private hovered = false; // the pointer is over this chart, which then sets the cursor

  constructor(private readonly options: LineChartOptions, context: PanelContext, onVisible: () => void) {
    super(options.id, options.title, options.unit, context, onVisible, options.wide ?? false);
    this.legend = new Legend(() => this.paint());
    this.body.append(this.plotElement, this.tooltip.element);
    this.footer.append(this.legend.element);
    this.refreshTools();
  }

  series(): number[] {
    return this.options.curves().map((curve) => curve.seriesId);
  }

  paint(): void {
    const width = this.body.clientWidth;
    if (width === 0) return;
    const said = this.options.describe?.();
    if (said) this.describe(said.text, said.unit);
    const log = this.context.view.logScales.has(this.id);
    if (!this.plot || this.log !== log) this.build(width, log);
    const { view, model } = this.context;
    const range = view.range(model.generations);
    this.extent = extentOf(
      this.strands(), range.from, range.to, view.envelopes, log);
    if (this.plot && this.plot.width !== width) this.plot.setSize({ width, height: HEIGHT });
    this.plot?.setData([[range.from, range.to], [null, null]]);
    this.showCursor();
  }

  showCursor(): void {
    const { view } = this.context;
    if (this.plot && !this.hovered) {
      const plot = this.geometry(this.plot);
      const inside = view.cursor !== null && view.cursor >= plot.from && view.cursor <= plot.to;
      const left = inside ? this.plot.valToPos(view.cursor ?? 0, "x") : -10;
      this.plot.setCursor({ left, top: -10 }, false);
    }
    this.legend.show(this.curves(), (curve) => this.valueText(curve.seriesId));
  }

  private curves(): (Curve & { color: string })[] {
    return this.options.curves().map((curve, i) => ({ ...curve, color: curveColor(i) }));
  }

  private shownCurves(): (Curve & { color: string })[] {
    return this.curves().filter((curve) => !this.legend.isHidden(curve.label));
  }

  // Replaced stretches first, so that valid ones are drawn over them.
  private strands(): Strand[] {
    const { view, model, cache } = this.context;
    const shown = this.shownCurves();
    const strands = model.generations.flatMap(({ generation }) => {
      const turn = replacedFrom(model.generations, generation);
      const unreported = this.options.lateByOne?.() ? unreportedSteps(this.context, generation) : [];
      return shown.flatMap((curve) => {
        const track = cache.track(curve.seriesId, generation);
        if (!track) return [];
        const common = { track, generation, color: curve.color, unreported, quiet: this.options.quiet ?? false };
        const kept: Strand = { ...common, begin: 0, end: turn, replaced: false };
        const replaced: Strand = { ...common, begin: turn, end: Infinity, replaced: true };
        return Number.isFinite(turn) && view.replacedSteps ? [kept, replaced] : [kept];
      });
    });
    return strands.sort((a, b) => Number(b.replaced) - Number(a.replaced));
  }

  private build(width: number, log: boolean): void {
    this.plot?.destroy();
    this.log = log;
    this.plot = new uPlot(this.uplotOptions(width, log), [[0, 1], [null, null]], this.plotElement);
    this.hovered = false;
    this.plot.over.addEventListener("mouseenter", () => { this.hovered = true; });
    this.plot.over.addEventListener("mouseleave", () => {
      this.hovered = false;
      this.tooltip.hide();
      this.context.view.setCursor(null);
    });
    this.refreshTools();
  }

  private uplotOptions(width: number, log: boolean): uPlot.Options {
    const axis = (): Partial<uPlot.Axis> => ({
      stroke: () => color("--muted"),
      grid: { stroke: () => color("--grid"), width: 1 },
      ticks: { show: false },
      font: `11px ${color("--font")}`,
    });
    const label = this.options.format ?? tick;
    return {
      width,
      height: HEIGHT,
      padding: [PAD_TOP, PAD_RIGHT, 0, 0],
      legend: { show: false },
      scales: {
        x: { time: false, range: (_, min, max) => [min, max] },
        y: { distr: log ? 3 : 1, auto: true, range: () => [this.extent.min, this.extent.max] },
      },
      axes: [
        { ...axis(), size: AXIS_BOTTOM, space: 70, incrs: STEP_INCREMENTS, values: (_, all) => all.map(tick) },
        { ...axis(), size: AXIS_LEFT, values: (_, all) => all.map((v) => (v === null ? "" : label(v))) },
      ],
      series: [{}, { show: true, paths: () => null, points: { show: false } }],
      cursor: {
        y: false,
        points: { show: false },
        drag: { x: true, y: false, setScale: false, dist: 4 },
        bind: { dblclick: () => () => { this.context.view.setZoom(null); return null; } },
      },
      hooks: {
        draw: [(u) => this.draw(u)],
        setSelect: [(u) => this.zoomTo(u)],
        setCursor: [(u) => this.moveCursor(u)],
      },
    };
  }

  private geometry(u: uPlot): Plot {
    const ratio = uPlot.pxRatio;
    return {
      left: u.bbox.left / ratio, top: u.bbox.top / ratio,
      width: u.bbox.width / ratio, height: u.bbox.height / ratio,
      from: u.scales["x"]?.min ?? 0, to: u.scales["x"]?.max ?? 1,
    };
  }

  private draw(u: uPlot): void {
    const { view, model } = this.context;
    const plot = this.geometry(u);
    const ctx = u.ctx;
    this.marks = visibleEvents(model.events, plot, view.hiddenKinds);
    ctx.save();
    ctx.scale(uPlot.pxRatio, uPlot.pxRatio);
    if (view.replacedSteps) drawReplaced(ctx, plot, model.generations);
    const marks = drawMarks(ctx, plot, this.marks);
    ctx.beginPath();
    ctx.rect(plot.left, plot.top - 2, plot.width, plot.height + 4);
    ctx.clip();
    const toY = (value: number) => (this.log && value <= 0 ? null : u.valToPos(value, "y", true) / uPlot.pxRatio);
    const facts = { points: 0, nonfinite: 0 };
    const seen = new Set<number>();
    let replaced = 0;
    for (const strand of this.strands()) {
      const painted = paintStrand(ctx, plot, strand, toY, { band: view.envelopes, markColor: color("--bad") });
      facts.points += painted.points;
      facts.nonfinite += painted.nonfinite;
      if (painted.points > 0) seen.add(strand.generation);
      if (strand.replaced) replaced += painted.points;
    }
    ctx.restore();
    this.report(
      { points: facts.points, replaced, marks, generations: [...seen].sort((a, b) => a - b).join(","),
        "y-min": this.extent.min, "y-max": this.extent.max, from: plot.from, to: plot.to,
        width: this.bucketWidth() },
      facts.nonfinite);
    this.legend.note(this.note());
  }

  private bucketWidth(): number {
    return Math.max(1, ...this.strands().map((one) => one.track.width));
  }

  private note(): string {
    const width = this.bucketWidth();
    if (width === 1) return "every step";
    return this.context.view.envelopes
      ? `line: last of ${tick(width)} steps · band: min–max`
      : `line: last of ${tick(width)} steps`;
  }

  private zoomTo(u: uPlot): void {
    if (u.select.width < 4) return;
    const plot = this.geometry(u);
    const from = Math.max(0, Math.round(toStep(plot, plot.left + u.select.left)));
    const to = Math.round(toStep(plot, plot.left + u.select.left + u.select.width));
    u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.context.view.setZoom({ from, to: Math.max(to, from + 1) });
  }

  private moveCursor(u: uPlot): void {
    const left = u.cursor.left ?? -1;
    if (left < 0 || !this.hovered) return;
    const plot = this.geometry(u);
    this.context.view.setCursor(toStep(plot, plot.left + left));
    this.showTooltip(plot, plot.left + left);
  }

  private showTooltip(plot: Plot, x: number): void {
    const step = toStep(plot, x);
    const events = eventsNear(this.marks, plot, x).slice(-3);
    const rows = this.shownCurves().slice(0, TOOLTIP_ROWS).flatMap((curve) =>
      valuesAt(this.context, curve.seriesId, step, this.reach()).map(({ generation, bucket, replaced }) => valueRow(
        replaced ? `${curve.label}, launch ${generation}` : curve.label,
        bucketText(bucket, this.options.format ?? number), curve.color, replaced)));
    const width = this.bucketWidth();
    const first = Math.floor(Math.round(step) / width) * width;
    this.tooltip.show(x, 18, this.body.clientWidth, stepRow(first, width), ...rows, ...events.map(eventRow));
  }

  // Values at the cursor, of the newest launch that ran the step; without a cursor, the newest values.
  private valueText(seriesId: number): string {
    const { view, model, cache } = this.context;
    const bucket = view.cursor !== null
      ? valuesAt(this.context, seriesId, view.cursor, this.reach())[0]?.bucket
      : model.generations.flatMap((one) => cache.track(seriesId, one.generation)?.lastBucket ?? []).at(-1);
    return bucket ? bucketText(bucket, this.options.format ?? number) : "–";
  }

  private reach(): number {
    const range = this.context.view.range(this.context.model.generations);
    return (range.to - range.from) / 100;
  }

  private refreshTools(): void {
    const { view } = this.context;
    const log = view.logScales.has(this.id);
    const button = h(
      "button", { class: "chip", "aria-pressed": String(log), title: "Logarithmic scale",
        onclick: () => view.style(() => (log ? view.logScales.delete(this.id) : view.logScales.add(this.id))) },
      "log");
    this.setTools(...(this.options.tools?.() ?? []), button);
  }
}

function bucketText(bucket: Bucket, format: (value: number) => string): string {
  if (bucket.count === 0) return "not finite";
  const last = format(bucket.last);
  return bucket.min === bucket.max ? last : `${last}  [${format(bucket.min)} … ${format(bucket.max)}]`;
}

const STEP_INCREMENTS = Array.from({ length: 12 }, (_, i) => [1, 2, 5].map((m) => m * 10 ** i)).flat();
