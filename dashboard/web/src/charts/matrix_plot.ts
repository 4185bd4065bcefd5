// SPDX-License-Identifier: Apache-2.0
// Draws a matrix of one step on a canvas: cells, axes, and the margins that sum it up. Also finds the cell at a point.

import type { Matrix } from "../data/matrix";
import { h } from "../ui/dom";
import { color } from "../ui/theme";

type Rgb = readonly [number, number, number];

export interface Margin {
  title: string;
  values: number[]; // [rows] or [columns]; NaN if there is no value
  text: (value: number) => string;
}

export interface MatrixPicture {
  matrix: Matrix;
  colorOf: (value: number) => Rgb;
  text: (value: number) => string; // inside a cell with enough room
  rowLabel: (row: number) => string;
  columnTitle: string;
  right: Margin;
  below?: Margin;
}

export interface Cell {
  row: number; // position in the matrix, not the layer or rank
  column: number;
}

const LEFT = 64;
const RIGHT = 96;
const TOP = 18;
const AXIS = 34;
const STRIP = 34; // height of the margin below
const ROW_MIN = 15;
const ROW_MAX = 30;
const HEIGHT_MIN = 120;
const HEIGHT_MAX = 420;
const LABEL = 12; // least distance of labels in pixels
const BROKEN: Rgb = [255, 64, 200];

export class MatrixPlot {
  readonly canvas = h("canvas", { class: "heatmap matrix", tabindex: 0 });
  private picture: MatrixPicture | null = null;
  private width = 0;
  private height = 0;

  // Fits into `width` CSS pixels. `chosen` is outlined.
  draw(width: number, picture: MatrixPicture, chosen: Cell | null): void {
    const rows = picture.matrix.rows.length;
    this.picture = picture;
    this.width = Math.max(1, width - LEFT - RIGHT);
    const rowHeight = Math.min(ROW_MAX, Math.max(ROW_MIN, HEIGHT_MIN / Math.max(1, rows)));
    this.height = Math.min(HEIGHT_MAX, Math.round(rowHeight * rows));
    const ctx = this.prepare(width, TOP + this.height + AXIS + (picture.below ? STRIP : 0));
    if (!ctx || rows === 0) return;
    this.drawCells(ctx, picture);
    this.drawRows(ctx, picture);
    this.drawColumns(ctx, picture);
    if (chosen) this.outline(ctx, chosen);
  }

  // The cell at a point in CSS pixels; null outside of the cells.
  cellAt(x: number, y: number): Cell | null {
    const matrix = this.picture?.matrix;
    if (!matrix || matrix.rows.length === 0) return null;
    const column = Math.floor(((x - LEFT) / this.width) * matrix.columns.length);
    const row = Math.floor(((y - TOP) / this.height) * matrix.rows.length);
    const inside = column >= 0 && column < matrix.columns.length && row >= 0 && row < matrix.rows.length;
    return inside ? { row, column } : null;
  }

  middleOf(cell: Cell): { x: number; y: number } {
    const [w, h] = this.cellSize();
    return { x: LEFT + (cell.column + 0.5) * w, y: TOP + (cell.row + 0.5) * h };
  }

  private cellSize(): [number, number] {
    const matrix = this.picture?.matrix;
    return [this.width / Math.max(1, matrix?.columns.length ?? 1), this.height / Math.max(1, matrix?.rows.length ?? 1)];
  }

  private prepare(width: number, height: number): CanvasRenderingContext2D | null {
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    const ctx = this.canvas.getContext("2d");
    ctx?.scale(ratio, ratio);
    return ctx;
  }

  private drawCells(ctx: CanvasRenderingContext2D, { matrix, colorOf, text }: MatrixPicture): void {
    const [w, h] = this.cellSize();
    const gap = w >= 7 && h >= 7 ? 1 : 0;
    ctx.font = `11px ${color("--font")}`;
    const roomy = h >= 15 && this.textsFit(ctx, matrix, text, w - 4);
    ctx.textAlign = "center";
    ctx.textBaseline = "middle";
    matrix.values.forEach((value, i) => {
      const x = LEFT + (i % matrix.columns.length) * w;
      const y = TOP + Math.floor(i / matrix.columns.length) * h;
      const rgb = matrix.broken[i] === 1 ? BROKEN : Number.isNaN(value) ? null : colorOf(value);
      ctx.fillStyle = rgb ? `rgb(${rgb.join(" ")})` : color("--hole");
      ctx.fillRect(x, y, Math.max(w - gap, 0.5), h - gap);
      if (!roomy || !rgb) return;
      ctx.fillStyle = brightness(rgb) > 0.55 ? "#10151c" : "#f2f5f9";
      ctx.fillText(matrix.broken[i] === 1 ? "∞" : text(value), x + w / 2, y + h / 2);
    });
  }

  private textsFit(ctx: CanvasRenderingContext2D, matrix: Matrix, text: (value: number) => string, width: number): boolean {
    if (width < 16) return false;
    return matrix.values.every((value) => Number.isNaN(value) || ctx.measureText(text(value)).width <= width);
  }

  private drawRows(ctx: CanvasRenderingContext2D, { matrix, rowLabel, right }: MatrixPicture): void {
    const [, h] = this.cellSize();
    const every = Math.max(1, Math.ceil(LABEL / h));
    const largest = Math.max(0, ...right.values.filter((value) => Number.isFinite(value)));
    const x = LEFT + this.width + 10;
    ctx.font = `11px ${color("--font")}`;
    ctx.textBaseline = "middle";
    matrix.rows.forEach((row, i) => {
      const y = TOP + (i + 0.5) * h;
      const value = right.values[i] ?? NaN;
      if (Number.isFinite(value) && largest > 0) {
        ctx.fillStyle = color("--border");
        ctx.fillRect(x, TOP + i * h + 1, Math.max(1, (RIGHT - 50) * (Math.max(0, value) / largest)), Math.max(1, h - 3));
      }
      if (i % every !== 0) return;
      ctx.fillStyle = color("--muted");
      ctx.textAlign = "right";
      ctx.fillText(rowLabel(row), LEFT - 8, y);
      ctx.fillStyle = color("--soft");
      ctx.fillText(Number.isFinite(value) ? right.text(value) : "–", LEFT + this.width + RIGHT - 2, y);
    });
    ctx.fillStyle = color("--muted");
    ctx.textAlign = "right";
    ctx.fillText(right.title, LEFT + this.width + RIGHT - 2, TOP - 9);
  }

  private drawColumns(ctx: CanvasRenderingContext2D, { matrix, columnTitle, below }: MatrixPicture): void {
    const [w] = this.cellSize();
    const bottom = TOP + this.height;
    const every = niceStep(26 / w);
    ctx.textAlign = "center";
    ctx.textBaseline = "top";
    ctx.fillStyle = color("--muted");
    matrix.columns.forEach((column, i) => {
      if (column % every === 0) ctx.fillText(String(column), LEFT + (i + 0.5) * w, bottom + 5);
    });
    ctx.fillText(columnTitle, LEFT + this.width / 2, bottom + 19);
    if (below) this.drawBelow(ctx, below, bottom + AXIS);
  }

  // Bars, with their values where there is room.
  private drawBelow(ctx: CanvasRenderingContext2D, below: Margin, top: number): void {
    const [w] = this.cellSize();
    const largest = Math.max(0, ...below.values.filter((value) => Number.isFinite(value)));
    ctx.textBaseline = "middle";
    below.values.forEach((value, i) => {
      if (!Number.isFinite(value) || largest <= 0) return;
      const height = Math.max(1, (STRIP - 6) * (Math.max(0, value) / largest));
      ctx.fillStyle = color("--border");
      ctx.fillRect(LEFT + i * w, top + STRIP - 4 - height, Math.max(w - 1, 0.5), height);
      if (ctx.measureText(below.text(value)).width > w - 4) return;
      ctx.fillStyle = color("--soft");
      ctx.fillText(below.text(value), LEFT + (i + 0.5) * w, top + STRIP / 2 - 1);
    });
    ctx.fillStyle = color("--muted");
    ctx.textAlign = "right";
    ctx.fillText(below.title, LEFT - 8, top + STRIP / 2 - 1);
  }

  private outline(ctx: CanvasRenderingContext2D, cell: Cell): void {
    const [w, h] = this.cellSize();
    ctx.strokeStyle = color("--text");
    ctx.lineWidth = 2;
    ctx.strokeRect(LEFT + cell.column * w, TOP + cell.row * h, Math.max(w - 1, 2), Math.max(h - 1, 2));
  }
}

// Perceived brightness, in which green has the largest weight.
function brightness([r, g, b]: Rgb): number {
  return (0.299 * r + 0.587 * g + 0.114 * b) / 255;
}

// The smallest of 1, 2, 5, 10, ... that is at least `least`.
function niceStep(least: number): number {
  for (let power = 1; ; power *= 10) {
    for (const m of [1, 2, 5]) if (m * power >= least) return m * power;
  }
}
