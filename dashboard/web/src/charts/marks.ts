// SPDX-License-Identifier: Apache-2.0
// Events as vertical marks on every chart and heatmap.

import { replacedFrom } from "../data/lineage";
import type { GenerationInfo, RunEvent } from "../data/types";
import { color } from "../ui/theme";
import { type Plot, toX } from "./geometry";
import { eventVariable, withAlpha } from "./palette";

const HIT_PIXELS = 5;
const FLAG = 4;
const LINES_MAX = 8; // of one frequent kind: more would hide the curves
const STRENGTH = { info: 0.4, warning: 0.6, error: 0.8 };
const WORST = ["info", "warning", "error"];

// Events with a step, inside the plot, whose kind is not hidden.
export function visibleEvents(events: RunEvent[], plot: Plot, hiddenKinds: Set<string>): RunEvent[] {
  return events.filter((event) =>
    event.step >= 0 && event.step >= plot.from && event.step <= plot.to && !hiddenKinds.has(event.kind));
}

// Shades the steps that a restart did again, because equal curves of two launches hide each other.
export function drawReplaced(
  ctx: CanvasRenderingContext2D, plot: Plot, generations: GenerationInfo[], strength = 0.1,
): void {
  ctx.fillStyle = withAlpha(color("--event-restart"), strength);
  for (const one of generations) {
    const begin = Math.max(replacedFrom(generations, one.generation), plot.from);
    const end = Math.min(one.step_last, plot.to);
    if (begin >= end) continue;
    const x = toX(plot, begin);
    ctx.fillRect(x, plot.top, toX(plot, end) - x, plot.height);
  }
}

// Draws at most one flag and one line per pixel column and kind, and only the flag of a kind that is frequent
// and not a warning. Returns the number of flags drawn.
export function drawMarks(ctx: CanvasRenderingContext2D, plot: Plot, events: RunEvent[]): number {
  const drawn = new Set<string>();
  const counts = new Map<string, number>();
  for (const { kind } of events) counts.set(kind, (counts.get(kind) ?? 0) + 1);
  ctx.save();
  ctx.lineWidth = 1;
  // The most severe last: at one step the flag of a finding hides that of its action.
  const order = [...events].sort((a, b) => WORST.indexOf(a.severity) - WORST.indexOf(b.severity));
  for (const event of order) {
    const x = Math.round(toX(plot, event.step)) + 0.5;
    const variable = eventVariable(event.kind);
    const key = `${x} ${variable}`;
    if (drawn.has(key)) continue;
    drawn.add(key);
    const solid = color(variable);
    if (event.severity !== "info" || (counts.get(event.kind) ?? 0) <= LINES_MAX) {
      ctx.strokeStyle = withAlpha(solid, STRENGTH[event.severity]);
      ctx.setLineDash(event.severity === "error" ? [] : [3, 3]);
      ctx.beginPath();
      ctx.moveTo(x, plot.top);
      ctx.lineTo(x, plot.top + plot.height);
      ctx.stroke();
    }
    ctx.fillStyle = solid;
    ctx.beginPath();
    ctx.moveTo(x - FLAG, plot.top - 2 * FLAG);
    ctx.lineTo(x + FLAG, plot.top - 2 * FLAG);
    ctx.lineTo(x, plot.top - 1);
    ctx.fill();
  }
  ctx.restore();
  return drawn.size;
}

export function eventsNear(events: RunEvent[], plot: Plot, x: number): RunEvent[] {
  return events.filter((event) => Math.abs(toX(plot, event.step) - x) <= HIT_PIXELS);
}
