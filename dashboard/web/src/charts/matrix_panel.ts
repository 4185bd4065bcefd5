// SPDX-License-Identifier: Apache-2.0
// A metric at one step as a matrix: at the newest step, or at the step of the slider.

import { fetchStep } from "../data/api";
import { filled, generationAt, type Matrix, matrixOf } from "../data/matrix";
import type { StepAnswer } from "../data/types";
import { h, setText } from "../ui/dom";
import { grouped, step as stepText } from "../ui/format";
import { type Cell, MatrixPlot, type MatrixPicture } from "./matrix_plot";
import { Panel, type PanelContext } from "./panel";
import { stepRow, Tooltip, valueRow } from "./tooltip";

export interface MatrixOptions {
  id: string;
  title: string;
  unit: string;
  metric: string;
  rowOf: "layer" | "rank";
  what: string; // one line that describes a cell
  empty: string; // shown without data: how a run publishes the metric
  picture: (matrix: Matrix) => MatrixPicture;
  legend: (matrix: Matrix) => HTMLElement;
  // Lines of the box at a cell: label and value.
  facts: (matrix: Matrix, cell: Cell) => [string, string][];
}

const CHOICE = "step"; // key in the view: one step for all matrices; absent while they follow the run
const FOLLOW_MS = 500;
const FOLLOW_SHARE = 4; // an answer may take at most one part in this many of the time
const SETTLE_MS = 250;

export class MatrixPanel extends Panel {
  private readonly plot = new MatrixPlot();
  private readonly tooltip = new Tooltip();
  private readonly nothing = h("p", { class: "empty", hidden: true });
  private readonly slider = h("input", { type: "range", class: "step-slider", min: 0, max: 1, step: 1 });
  private readonly where = h("output", { class: "step-text" });
  private readonly follow = h("button", { class: "chip", title: "Follow the newest step" }, "Newest");
  private readonly controls = h("div", { class: "step-controls" }, this.follow, this.slider, this.where);
  private readonly scale = h("div", { class: "legend" });
  private answer: StepAnswer | null = null;
  private matrix: Matrix | null = null;
  private shown = ""; // the request that `answer` belongs to
  private failure = "";
  private busy = false;
  private askedAt = -Infinity;
  private answeredMs = 0; // duration of the last request
  private timer = 0;
  private settle = 0;
  private sliding: number | null = null;
  private chosen: Cell | null = null;

  constructor(private readonly options: MatrixOptions, context: PanelContext, onVisible: () => void) {
    super(options.id, options.title, options.unit, context, onVisible);
    this.slider.setAttribute("aria-label", `Step of ${options.title}`);
    this.plot.canvas.setAttribute("role", "img");
    this.body.append(this.plot.canvas, this.nothing, this.tooltip.element);
    this.footer.append(this.scale, this.controls);
    this.describe(options.what);
    this.listen();
  }

  // Sends its own requests: a matrix needs one step of every series, not a range of some.
  series(): number[] {
    return [];
  }

  showCursor(): void {
    // A matrix has no axis of steps.
  }

  paint(): void {
    const published = this.context.model.catalog.has(this.options.metric);
    this.controls.hidden = !published;
    if (published) this.refresh();
    this.draw(published);
  }

  private get wanted(): number | null {
    if (this.sliding !== null) return this.sliding;
    const chosen = this.context.view.choice(CHOICE, "");
    return chosen === "" || !Number.isFinite(Number(chosen)) ? null : Number(chosen);
  }

  // Requests the step to show, one request at a time: while the slider moves, only its last position counts.
  private refresh(): void {
    const { model, view } = this.context;
    const step = this.wanted;
    const generation = step === null ? model.run.generation : generationAt(model.generations, step);
    const key = step === null ? `newest ${generation} ${model.run.last_step}` : `${generation} ${step}`;
    const frozen = view.paused && step === null && this.answer !== null;
    if (this.busy || key === this.shown || frozen) return;
    const early = step === null && this.answer !== null ? this.askedAt + Math.max(FOLLOW_MS, FOLLOW_SHARE * this.answeredMs) - performance.now() : 0;
    if (early > 0) {
      window.clearTimeout(this.timer);
      this.timer = window.setTimeout(() => this.isVisible && this.paint(), early);
      return;
    }
    this.busy = true;
    this.askedAt = performance.now();
    fetchStep(model.runId, this.options.metric, generation, step ?? -1).then(
      (answer) => {
        this.failure = "";
        this.answer = answer;
        this.matrix = matrixOf(answer, this.options.rowOf);
      },
      (error: Error) => { this.failure = error.message; }).finally(() => {
      this.busy = false;
      this.answeredMs = performance.now() - this.askedAt;
      this.shown = key;
      this.paint();
    });
  }

  private draw(published: boolean): void {
    const width = this.body.clientWidth;
    if (width === 0) return;
    const { matrix, answer } = this;
    const points = matrix ? filled(matrix) + matrix.broken.reduce((n, one) => n + one, 0) : 0;
    const reason = !published ? this.options.empty
      : this.failure !== "" ? this.failure
      : answer === null ? "…"
      : points === 0 ? `Nothing was reported of step ${stepText(answer.step)}.` : "";
    this.nothing.hidden = reason === "";
    setText(this.nothing, reason);
    this.plot.canvas.hidden = reason !== "";
    this.scale.hidden = reason !== "";
    this.showControls();
    if (reason !== "" || !matrix || !answer) {
      this.tooltip.hide();
      this.report({ points: 0, rows: 0, columns: 0, step: answer?.step ?? -1 }, 0);
      return;
    }
    if (this.chosen && (this.chosen.row >= matrix.rows.length || this.chosen.column >= matrix.columns.length)) this.chosen = null;
    this.plot.draw(width, this.options.picture(matrix), this.chosen);
    this.scale.replaceChildren(this.options.legend(matrix));
    this.plot.canvas.setAttribute("aria-label",
      `${this.options.title}, ${matrix.rows.length} by ${matrix.columns.length} at step ${answer.step}; arrow keys read single cells`);
    this.report(
      { points, rows: matrix.rows.length, columns: matrix.columns.length, step: answer.step,
        generation: answer.generation, following: this.wanted === null ? 1 : 0 },
      matrix.broken.reduce((n, one) => n + one, 0));
    if (this.chosen) this.showCell(this.chosen);
  }

  private showControls(): void {
    const { model } = this.context;
    const first = Math.min(...model.generations.map((one) => one.step_first));
    const last = Math.max(0, ...model.generations.map((one) => one.step_last));
    const at = this.wanted ?? this.answer?.step ?? last;
    this.slider.min = String(Number.isFinite(first) ? first : 0);
    this.slider.max = String(last);
    this.slider.value = String(at);
    this.slider.setAttribute("aria-valuetext", `step ${at}`);
    setText(this.where, `step ${grouped(at)}`);
    this.follow.setAttribute("aria-pressed", String(this.wanted === null));
  }

  private listen(): void {
    const { view } = this.context;
    this.slider.addEventListener("input", () => {
      this.sliding = Number(this.slider.value);
      this.paint();
      // The address and the other matrices follow when the slider rests.
      window.clearTimeout(this.settle);
      this.settle = window.setTimeout(() => this.choose(this.sliding), SETTLE_MS);
    });
    this.follow.addEventListener("click", () => this.choose(null));
    const { canvas } = this.plot;
    canvas.addEventListener("pointermove", (event) => this.point(this.plot.cellAt(event.offsetX, event.offsetY)));
    canvas.addEventListener("pointerleave", () => this.point(null));
    canvas.addEventListener("blur", () => this.point(null));
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("focus", () => {
      if (canvas.matches(":focus-visible")) this.point(this.chosen ?? { row: 0, column: 0 });
    });
    view.onChange((change) => {
      if (change === "range" || change === "pause") this.isVisible && this.paint();
    });
  }

  private choose(step: number | null): void {
    window.clearTimeout(this.settle);
    this.sliding = null;
    this.context.view.style(() => {
      if (step === null) this.context.view.choices.delete(CHOICE);
      else this.context.view.choices.set(CHOICE, String(step));
    });
  }

  // These keys select cells here instead of moving the range of steps.
  private key(event: KeyboardEvent): void {
    const { matrix } = this;
    if (!matrix || matrix.rows.length === 0 || event.ctrlKey || event.metaKey || event.altKey) return;
    const at = this.chosen ?? { row: 0, column: 0 };
    const moves: Record<string, Cell | null> = {
      ArrowLeft: { ...at, column: at.column - 1 },
      ArrowRight: { ...at, column: at.column + 1 },
      ArrowUp: { ...at, row: at.row - 1 },
      ArrowDown: { ...at, row: at.row + 1 },
      Home: { ...at, column: 0 },
      End: { ...at, column: matrix.columns.length - 1 },
      Escape: null,
    };
    const to = moves[event.key];
    if (to === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    const within = (value: number, count: number) => Math.min(Math.max(value, 0), count - 1);
    this.point(to === null ? null : { row: within(to.row, matrix.rows.length), column: within(to.column, matrix.columns.length) });
  }

  private point(cell: Cell | null): void {
    if (cell?.row === this.chosen?.row && cell?.column === this.chosen?.column) return;
    this.chosen = cell;
    const { matrix } = this;
    if (matrix && !this.plot.canvas.hidden) this.plot.draw(this.body.clientWidth, this.options.picture(matrix), cell);
    if (cell) this.showCell(cell);
    else this.tooltip.hide();
  }

  private showCell(cell: Cell): void {
    const { matrix, answer } = this;
    if (!matrix || !answer) return;
    const { x, y } = this.plot.middleOf(cell);
    this.tooltip.show(
      x, Math.min(y, this.body.clientHeight - 40), this.body.clientWidth, stepRow(answer.step, 1),
      ...this.options.facts(matrix, cell).map(([name, value]) => valueRow(name, value, null, false)));
  }
}
