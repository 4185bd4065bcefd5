// SPDX-License-Identifier: Apache-2.0
// Many series of one kind over steps: rows are heads, layers or experts, colour is the value.

import type { SeriesInfo } from "../data/types";
import type { RunEvent } from "../data/types";
import { h, setText } from "../ui/dom";
import { number, tick } from "../ui/format";
import { color } from "../ui/theme";
import { AXIS_BOTTOM, AXIS_LEFT, PAD_RIGHT, PAD_TOP, type Plot, toStep, toX } from "./geometry";
import { type Cells, collectCells, type Ramp, rampPosition, renderCells } from "./heatmap_image";
import { drawMarks, drawReplaced, eventsNear, visibleEvents } from "./marks";
import { hexColor, rampColor, rampCss } from "./palette";
import { Panel, type PanelContext } from "./panel";
import { eventRow, stepRow, Tooltip, valueRow } from "./tooltip";
import { valuesAt } from "./values";

export interface HeatmapOptions {
  id: string;
  title: string;
  unit: string;
  wide?: boolean;
  rows: () => SeriesInfo[];
  label: (row: SeriesInfo) => string;
  // A line is drawn between rows whose groups differ.
  groupOf: (row: SeriesInfo) => number;
  groupLabel: (row: SeriesInfo) => string;
  tools?: () => HTMLElement[];
  quiet?: () => boolean; // NaN means that no value was reported: it gets no mark, and a row of nothing else is left out
  describe?: () => { text: string; unit: string }; // of the current selection
  // Names and colour variables of the values 0, 1, ... if these are kinds and not amounts.
  kinds?: { name: string; variable: string }[];
  text?: (row: SeriesInfo, value: number, generation: number, step: number) => string;
}

const HEIGHT_MIN = 150;
const HEIGHT_MIN_KINDS = 44;
const HEIGHT_MAX = 420;
const ROW_HEIGHT = 14;

export class Heatmap extends Panel {
  private readonly canvas = h("canvas", { class: "heatmap", tabindex: 0 });
  private readonly overlay = h("div", { class: "crosshair", hidden: true });
  private readonly selection = h("div", { class: "selection", hidden: true });
  private readonly tooltip = new Tooltip();
  private readonly low = h("b", {});
  private readonly high = h("b", {});
  private readonly note = h("span", { class: "note" });
  private plot: Plot = { left: AXIS_LEFT, top: PAD_TOP, width: 1, height: 1, from: 0, to: 1 };
  private cells: Cells | null = null;
  private marks: RunEvent[] = [];
  private dragFrom: number | null = null;

  constructor(private readonly options: HeatmapOptions, context: PanelContext, onVisible: () => void) {
    super(options.id, options.title, options.unit, context, onVisible, options.wide ?? false);
    this.body.append(this.canvas, this.overlay, this.selection, this.tooltip.element);
    this.footer.append(h("div", { class: "legend" }, this.legend(), this.note));
    this.element.toggleAttribute("data-kinds", options.kinds !== undefined);
    this.listen();
    this.refreshTools();
  }

  private legend(): HTMLElement {
    if (this.options.kinds) {
      return h("div", { class: "legend-list" }, ...this.options.kinds.map(({ name, variable }) => {
        const swatch = h("span", { class: "swatch" });
        swatch.style.background = `var(${variable})`;
        return h("span", { class: "legend-item" }, swatch, name);
      }));
    }
    const bar = h("span", { class: "ramp" });
    bar.style.background = rampCss();
    return h("div", { class: "ramp-legend" }, this.low, bar, this.high);
  }

  series(): number[] {
    return this.options.rows().map((row) => row.id);
  }

  paint(): void {
    const width = this.body.clientWidth;
    const rows = this.shownRows();
    if (width === 0) return;
    const { view, model, cache } = this.context;
    const range = view.range(model.generations);
    const said = this.options.describe?.();
    if (said) this.describe(said.text, said.unit);
    const least = this.options.kinds ? HEIGHT_MIN_KINDS : HEIGHT_MIN;
    const height = Math.min(HEIGHT_MAX, Math.max(least, rows.length * ROW_HEIGHT));
    this.plot = {
      left: AXIS_LEFT, top: PAD_TOP, width: Math.max(1, width - AXIS_LEFT - PAD_RIGHT), height,
      from: range.from, to: range.to };
    const tracks = rows.map((row) =>
      model.generations.flatMap(({ generation }) => cache.track(row.id, generation) ?? []));
    this.cells = collectCells(tracks, range.from, range.to);
    if (this.options.quiet?.()) {
      this.cells.nonfinite.fill(0);
      this.cells.nonfiniteCount = 0;
    }
    this.draw(rows, this.cells);
    this.refreshTools();
    this.showCursor();
  }

  showCursor(): void {
    const { cursor } = this.context.view;
    const inside = cursor !== null && cursor >= this.plot.from && cursor <= this.plot.to;
    this.overlay.hidden = !inside;
    if (!inside || cursor === null) return;
    this.overlay.style.transform = `translateX(${Math.round(toX(this.plot, cursor))}px)`;
    this.overlay.style.top = `${this.plot.top}px`;
    this.overlay.style.height = `${this.plot.height}px`;
  }

  private draw(rows: SeriesInfo[], cells: Cells): void {
    const { view, model } = this.context;
    const plot = this.plot;
    const ctx = this.prepare(plot);
    if (!ctx) return;
    const ramp = this.ramp(cells);
    const image = renderCells(cells, rows.length, this.colours(ramp));
    const left = toX(plot, cells.firstKey - 0.5);
    const right = toX(plot, cells.firstKey + cells.columns * cells.width - 0.5);
    ctx.save();
    ctx.beginPath();
    ctx.rect(plot.left, plot.top, plot.width, plot.height);
    ctx.clip();
    ctx.fillStyle = color("--hole");
    ctx.fillRect(plot.left, plot.top, plot.width, plot.height);
    ctx.imageSmoothingEnabled = false;
    ctx.drawImage(image, left, plot.top, right - left, plot.height);
    ctx.restore();
    this.drawAxes(ctx, rows);
    if (view.replacedSteps) drawReplaced(ctx, { ...plot, top: plot.top + plot.height + 2, height: 4 }, model.generations, 0.7);
    this.marks = visibleEvents(model.events, plot, view.hiddenKinds);
    const marks = drawMarks(ctx, plot, this.marks);
    setText(this.low, cells.filled > 0 ? number(ramp.min) : "–");
    setText(this.high, cells.filled > 0 ? number(ramp.max) : "–");
    setText(this.note, cells.width > 1 ? `maximum of ${tick(cells.width)} steps` : "every step");
    this.report(
      { points: cells.filled, rows: rows.length, marks, "y-min": ramp.min, "y-max": ramp.max,
        from: plot.from, to: plot.to, width: cells.width },
      cells.nonfiniteCount);
  }

  private colours(ramp: Ramp): (value: number) => readonly [number, number, number] {
    const kinds = this.options.kinds?.map(({ variable }) => hexColor(color(variable)));
    if (!kinds) return (value) => rampColor(rampPosition(value, ramp));
    return (value) => kinds[Math.min(kinds.length - 1, Math.max(0, Math.round(value)))] ?? [0, 0, 0];
  }

  private shownRows(): SeriesInfo[] {
    const rows = this.options.rows();
    if (!this.options.quiet?.()) return rows;
    const { model, cache } = this.context;
    const filled = rows.filter((row) => model.generations.some(({ generation }) =>
      cache.track(row.id, generation)?.buckets.some((bucket) => bucket.count > 0)));
    return filled.length > 0 ? filled : rows;
  }

  private ramp(cells: Cells): Ramp {
    const log = this.context.view.logScales.has(this.id);
    if (cells.filled === 0) return { min: 0, max: 1, log: false };
    return { min: cells.min, max: cells.max, log: log && cells.min > 0 };
  }

  private prepare(plot: Plot): CanvasRenderingContext2D | null {
    const ratio = window.devicePixelRatio || 1;
    const width = plot.left + plot.width + PAD_RIGHT;
    const height = plot.top + plot.height + AXIS_BOTTOM;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    const ctx = this.canvas.getContext("2d");
    ctx?.scale(ratio, ratio);
    return ctx;
  }

  private drawAxes(ctx: CanvasRenderingContext2D, rows: SeriesInfo[]): void {
    const { plot } = this;
    ctx.font = `11px ${color("--font")}`;
    ctx.fillStyle = color("--muted");
    ctx.textAlign = "right";
    ctx.textBaseline = "middle";
    const rowHeight = plot.height / Math.max(1, rows.length);
    let labelled = -Infinity;
    rows.forEach((row, i) => {
      const y = plot.top + i * rowHeight;
      const starts = i === 0 || this.options.groupOf(row) !== this.options.groupOf(rows[i - 1] ?? row);
      if (starts && i > 0) {
        ctx.fillStyle = color("--surface");
        ctx.fillRect(plot.left, Math.round(y) - 0.5, plot.width, 1);
        ctx.fillStyle = color("--muted");
      }
      const text = rowHeight >= 11 ? this.options.label(row) : starts ? this.options.groupLabel(row) : "";
      const middle = y + (rowHeight >= 11 ? rowHeight / 2 : 5);
      if (text && middle - labelled >= 11) {
        ctx.fillText(text, plot.left - 7, middle);
        labelled = middle;
      }
    });
    ctx.textAlign = "center";
    ctx.textBaseline = "top";
    for (const step of stepTicks(plot)) {
      ctx.fillText(tick(step), toX(plot, step), plot.top + plot.height + 8);
    }
  }

  private listen(): void {
    const { view } = this.context;
    this.canvas.addEventListener("pointerdown", (event) => {
      this.dragFrom = this.stepAt(event);
      this.canvas.setPointerCapture(event.pointerId);
    });
    this.canvas.addEventListener("pointermove", (event) => this.move(event));
    this.canvas.addEventListener("pointerup", (event) => this.release(event));
    this.canvas.addEventListener("pointerleave", () => {
      this.tooltip.hide();
      view.setCursor(null);
    });
    this.canvas.addEventListener("dblclick", () => view.setZoom(null));
  }

  private stepAt(event: PointerEvent): number {
    const step = toStep(this.plot, event.offsetX);
    return Math.min(Math.max(step, this.plot.from), this.plot.to);
  }

  private move(event: PointerEvent): void {
    const step = this.stepAt(event);
    this.context.view.setCursor(step);
    if (this.dragFrom !== null) {
      const [a, b] = [toX(this.plot, this.dragFrom), toX(this.plot, step)].sort((x, y) => x - y);
      this.selection.hidden = false;
      this.selection.style.left = `${a ?? 0}px`;
      this.selection.style.width = `${(b ?? 0) - (a ?? 0)}px`;
      this.selection.style.top = `${this.plot.top}px`;
      this.selection.style.height = `${this.plot.height}px`;
      return;
    }
    this.showTooltip(step, event.offsetX, event.offsetY);
  }

  private release(event: PointerEvent): void {
    const from = this.dragFrom;
    this.dragFrom = null;
    this.selection.hidden = true;
    if (from === null) return;
    const to = this.stepAt(event);
    if (Math.abs(toX(this.plot, from) - toX(this.plot, to)) < 4) return;
    const low = Math.round(Math.min(from, to));
    this.context.view.setZoom({ from: low, to: Math.max(low + 1, Math.round(Math.max(from, to))) });
  }

  private showTooltip(step: number, x: number, y: number): void {
    const rows = this.shownRows();
    const cells = this.cells;
    if (!cells || rows.length === 0) return;
    const row = Math.floor(((y - this.plot.top) / this.plot.height) * rows.length);
    const info = rows[Math.min(Math.max(row, 0), rows.length - 1)];
    if (!info) return;
    const column = Math.floor((Math.round(step) - cells.firstKey) / cells.width);
    const label = this.options.label(info);
    const found = valuesAt(this.context, info.id, step, 0);
    const values = found.map(({ generation, bucket, replaced }) => valueRow(
      replaced ? `${label}, launch ${generation}` : label,
      bucket.count === 0 && this.options.quiet?.() ? "–"
        : bucket.nonfinite > 0 && !this.options.quiet?.() ? "not finite"
        : (this.options.text?.(info, bucket.max, generation, bucket.key + cells.width - 1) ?? number(bucket.max)),
      null, replaced));
    this.tooltip.show(
      x, Math.min(y, this.plot.height - 20), this.body.clientWidth,
      stepRow(cells.firstKey + column * cells.width, cells.width),
      ...(values.length > 0 ? values : [valueRow(label, "–", null, false)]),
      ...eventsNear(this.marks, this.plot, x).slice(-3).map(eventRow));
  }

  private refreshTools(): void {
    const { view } = this.context;
    if (this.options.kinds) return;
    const log = view.logScales.has(this.id);
    const toggle = () => view.style(() => (log ? view.logScales.delete(this.id) : view.logScales.add(this.id)));
    this.setTools(...(this.options.tools?.() ?? []), h(
      "button", { class: "chip", "aria-pressed": String(log), title: "Logarithmic colours", onclick: toggle }, "log"));
  }
}

function stepTicks(plot: Plot): number[] {
  const wanted = Math.max(2, plot.width / 90);
  const raw = Math.max(1, (plot.to - plot.from) / wanted);
  const power = 10 ** Math.floor(Math.log10(raw));
  const increment = [1, 2, 5, 10].map((m) => m * power).find((value) => value >= raw) ?? raw;
  const ticks: number[] = [];
  for (let step = Math.ceil(plot.from / increment) * increment; step <= plot.to; step += increment) {
    ticks.push(step);
  }
  return ticks;
}
