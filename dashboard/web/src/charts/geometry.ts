// SPDX-License-Identifier: Apache-2.0
// Steps to pixels, the same for every panel, so that charts and heatmaps line up.

export interface Plot {
  left: number; // CSS pixels inside the panel's canvas
  top: number;
  width: number;
  height: number;
  from: number; // steps at the edges
  to: number;
}

export const AXIS_LEFT = 56;
export const PAD_RIGHT = 12;
export const PAD_TOP = 14;
export const AXIS_BOTTOM = 26;

export function toX(plot: Plot, step: number): number {
  return plot.left + ((step - plot.from) / (plot.to - plot.from)) * plot.width;
}

export function toStep(plot: Plot, x: number): number {
  return plot.from + ((x - plot.left) / plot.width) * (plot.to - plot.from);
}
