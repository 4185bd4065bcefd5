// SPDX-License-Identifier: Apache-2.0
// A metric at one step as a matrix, and values computed from it. Independent of the page.

import type { GenerationInfo, JsonNumber, StepAnswer } from "./types";

export interface Matrix {
  rows: number[]; // layers or ranks, ascending
  columns: number[]; // experts or peers, ascending
  values: Float64Array; // [rows * columns]; NaN if the value was not reported or is broken
  broken: Uint8Array; // 1 if the value is infinite
}

export function matrixOf(answer: StepAnswer, rowOf: "layer" | "rank"): Matrix {
  const keys = answer[rowOf];
  const rows = ascending(keys);
  const columns = ascending(answer.index);
  const values = new Float64Array(rows.length * columns.length).fill(NaN);
  const broken = new Uint8Array(values.length);
  const rowAt = new Map(rows.map((row, i) => [row, i]));
  const columnAt = new Map(columns.map((column, i) => [column, i]));
  answer.value.forEach((value: JsonNumber | null, i) => {
    const at = (rowAt.get(keys[i] ?? -1) ?? 0) * columns.length + (columnAt.get(answer.index[i] ?? -1) ?? 0);
    if (typeof value === "number") values[at] = value;
    else if (value !== null && value !== "NaN") broken[at] = 1;
  });
  return { rows, columns, values, broken };
}

export function filled(matrix: Matrix): number {
  let count = 0;
  for (const value of matrix.values) if (!Number.isNaN(value)) count++;
  return count;
}

export function rowValues(matrix: Matrix, row: number): number[] {
  const width = matrix.columns.length;
  return [...matrix.values.subarray(row * width, (row + 1) * width)].filter((value) => !Number.isNaN(value));
}

export function sum(values: number[]): number {
  return values.reduce((total, value) => total + value, 0);
}

// Every value divided by the mean of its row: 1 is an even share. NaN in a row whose sum is zero.
export function overRowMean(matrix: Matrix): Matrix {
  const width = matrix.columns.length;
  const means = matrix.rows.map((_, row) => {
    const given = rowValues(matrix, row);
    return sum(given) / given.length;
  });
  const values = matrix.values.map((value, i) => {
    const mean = means[Math.floor(i / width)] ?? NaN;
    return mean > 0 ? value / mean : NaN;
  });
  return { ...matrix, values };
}

// Largest value over the mean, minus 1: 0 is even. NaN for a row whose sum is zero.
export function maxvio(matrix: Matrix, row: number): number {
  const values = rowValues(matrix, row);
  const mean = sum(values) / values.length;
  return mean > 0 ? Math.max(...values) / mean - 1 : NaN;
}

export function rowSum(matrix: Matrix, row: number): number {
  return sum(rowValues(matrix, row));
}

export function columnSum(matrix: Matrix, column: number): number {
  const width = matrix.columns.length;
  return sum(matrix.rows.map((_, row) => matrix.values[row * width + column] ?? NaN).filter((value) => !Number.isNaN(value)));
}

// The launch whose values are valid for a step: the newest that ran it, or -1 if no launch did.
export function generationAt(all: GenerationInfo[], step: number): number {
  const found = all.filter((one) => one.step_first <= step && step <= one.step_last);
  return Math.max(-1, ...found.map((one) => one.generation));
}

function ascending(keys: number[]): number[] {
  return [...new Set(keys)].sort((a, b) => a - b);
}
