// SPDX-License-Identifier: Apache-2.0
// A heatmap's cells as pixels: one column per bucket, one row per series.

import type { Track } from "../data/track";

export interface Cells {
  columns: number;
  width: number; // steps per column
  firstKey: number;
  values: Float32Array; // [rows * columns]; NaN if a cell has no value
  nonfinite: Uint8Array;
  nonfiniteCount: number;
  filled: number;
  min: number;
  max: number;
}

// `rows[i]` holds the tracks of row i, older generations first: newer ones draw over them from
// their first step on. Every cell shows the maximum of its bucket, so a spike is visible at any zoom.
export function collectCells(rows: Track[][], from: number, to: number): Cells {
  const width = Math.max(1, ...rows.flat().map((track) => track.width));
  const firstKey = Math.floor(from / width) * width;
  const columns = Math.max(1, Math.floor(to / width) - firstKey / width + 1);
  const cells: Cells = {
    columns, width, firstKey,
    values: new Float32Array(rows.length * columns).fill(NaN),
    nonfinite: new Uint8Array(rows.length * columns),
    nonfiniteCount: 0, filled: 0, min: Infinity, max: -Infinity,
  };
  rows.forEach((tracks, row) => tracks.forEach((track) => addTrack(cells, row, track, from, to)));
  for (let i = 0; i < cells.values.length; ++i) {
    const value = cells.values[i] ?? NaN;
    if (Number.isNaN(value)) continue;
    cells.filled++;
    cells.min = Math.min(cells.min, value);
    cells.max = Math.max(cells.max, value);
  }
  return cells;
}

function addTrack(cells: Cells, row: number, track: Track, from: number, to: number): void {
  const begin = row * cells.columns;
  const start = track.lowerBound(from);
  const firstKey = track.buckets[start]?.key;
  if (firstKey === undefined) return;
  const firstColumn = Math.max(0, Math.floor((firstKey - cells.firstKey) / cells.width));
  cells.values.fill(NaN, begin + firstColumn, begin + cells.columns);
  cells.nonfinite.fill(0, begin + firstColumn, begin + cells.columns);
  for (let i = start; i < track.buckets.length; ++i) {
    const bucket = track.buckets[i];
    if (!bucket || bucket.key > to) break;
    const column = Math.floor((bucket.key - cells.firstKey) / cells.width);
    if (column < 0 || column >= cells.columns) continue;
    const at = begin + column;
    const before = cells.values[at] ?? NaN;
    if (bucket.count > 0) cells.values[at] = Number.isNaN(before) ? bucket.max : Math.max(before, bucket.max);
    if (bucket.nonfinite > 0) {
      cells.nonfinite[at] = 1;
      cells.nonfiniteCount += bucket.nonfinite;
    }
  }
}

export interface Ramp {
  min: number;
  max: number;
  log: boolean;
}

export function rampPosition(value: number, ramp: Ramp): number {
  if (ramp.log) {
    const low = Math.max(ramp.min, 1e-12);
    return Math.log(Math.max(value, low) / low) / Math.log(Math.max(ramp.max / low, 1 + 1e-9));
  }
  return ramp.max > ramp.min ? (value - ramp.min) / (ramp.max - ramp.min) : 0.5;
}

// Row 0 at the top. Cells without a value are transparent, those with NaN in them magenta.
export function renderCells(
  cells: Cells, rows: number, colorOf: (value: number) => readonly [number, number, number],
): HTMLCanvasElement {
  const canvas = document.createElement("canvas");
  canvas.width = cells.columns;
  canvas.height = Math.max(1, rows);
  const ctx = canvas.getContext("2d");
  if (!ctx) return canvas;
  const image = ctx.createImageData(canvas.width, canvas.height);
  for (let i = 0; i < cells.values.length; ++i) {
    const value = cells.values[i] ?? NaN;
    const broken = cells.nonfinite[i] === 1;
    if (!broken && Number.isNaN(value)) continue;
    const [r, g, b] = broken ? [255, 64, 200] as const : colorOf(value);
    image.data.set([r, g, b, 255], 4 * i);
  }
  ctx.putImageData(image, 0, 0);
  return canvas;
}
