// SPDX-License-Identifier: Apache-2.0
// Draws one stretch of a track: the min-max band, the line through the last values, single points, and a mark for
// every bucket with a value that is not finite.

import type { Bucket, Track } from "../data/track";
import { type Plot, toX } from "./geometry";
import { withAlpha } from "./palette";

// The steps [begin, end) of a track, drawn in one way.
export interface Strand {
  track: Track;
  generation: number;
  begin: number;
  end: number;
  replaced: boolean; // a later generation did these steps again
  color: string;
  unreported: number[]; // steps whose NaN means that no value was reported
  quiet: boolean; // the same holds for every step
}

export interface CurveStyle {
  band: boolean;
  markColor: string;
}

export interface Painted {
  points: number;
  nonfinite: number; // values, not buckets
}

type ToY = (value: number) => number | null; // null if the value is not on the scale (logarithm of 0)

const BAND_ALPHA = 0.16;
const EDGE_ALPHA = 0.5;
const DIM = 0.38;

export function paintStrand(
  ctx: CanvasRenderingContext2D, plot: Plot, strand: Strand, toY: ToY, style: CurveStyle,
): Painted {
  const { track, color } = strand;
  const visible = bucketsOf(strand, plot);
  const strength = strand.replaced ? DIM : 1;
  const runs = finiteRuns(visible, toY);
  for (const run of runs) {
    if (style.band && track.width > 1) paintBand(ctx, plot, track, run, toY, color, strength);
    paintLine(ctx, plot, track, run, toY, withAlpha(color, strength), strand.replaced);
  }
  const nonfinite = paintNonfinite(ctx, plot, strand, visible, style.markColor);
  const inside = visible.filter((one) => one.count > 0 && one.key + track.width > plot.from && one.key <= plot.to);
  return { points: inside.length, nonfinite };
}

// Buckets inside the plot and one more on either side, to which the line leaves the plot.
function bucketsOf({ track, begin, end, replaced }: Strand, plot: Plot): Bucket[] {
  const visible: Bucket[] = [];
  const first = Math.max(0, track.lowerBound(Math.max(plot.from, begin)) - 1);
  for (let i = first; i < track.buckets.length; ++i) {
    const bucket = track.buckets[i];
    if (!bucket || bucket.key >= end) break;
    // A replaced branch starts where it left the kept line, so that the two join.
    if (!replaced && bucket.key + track.width <= begin) continue;
    visible.push(bucket);
    if (bucket.key > plot.to) break;
  }
  return visible;
}

// Stretches without a gap. A bucket without a finite value interrupts the line, a step that was not reported
// does not: a statistic of every tenth step is still one line.
function finiteRuns(buckets: Bucket[], toY: ToY): Bucket[][] {
  const runs: Bucket[][] = [];
  let run: Bucket[] = [];
  for (const bucket of buckets) {
    if (bucket.count > 0 && toY(bucket.last) !== null) {
      run.push(bucket);
    } else if (run.length > 0) {
      runs.push(run);
      run = [];
    }
  }
  if (run.length > 0) runs.push(run);
  return runs;
}

function paintBand(
  ctx: CanvasRenderingContext2D, plot: Plot, track: Track, run: Bucket[], toY: ToY, tint: string,
  strength: number,
): void {
  const bottom = plot.top + plot.height;
  const edge = (path: Path2D, value: (bucket: Bucket) => number, reversed: boolean, joined: boolean) => {
    const order = reversed ? [...run].reverse() : run;
    order.forEach((bucket, i) => {
      const x = toX(plot, track.x(bucket));
      const y = toY(value(bucket)) ?? bottom;
      if (i === 0 && !joined) path.moveTo(x, y);
      else path.lineTo(x, y);
    });
  };
  const area = new Path2D();
  edge(area, (bucket) => bucket.max, false, false);
  edge(area, (bucket) => bucket.min, true, true);
  area.closePath();
  ctx.fillStyle = withAlpha(tint, BAND_ALPHA * strength);
  ctx.fill(area);
  // Strokes the edges too; otherwise an extreme value of one bucket would be too thin to see.
  const outline = new Path2D();
  edge(outline, (bucket) => bucket.max, false, false);
  edge(outline, (bucket) => bucket.min, false, false);
  ctx.strokeStyle = withAlpha(tint, EDGE_ALPHA * strength);
  ctx.lineWidth = 0.8;
  ctx.stroke(outline);
}

function paintLine(
  ctx: CanvasRenderingContext2D, plot: Plot, track: Track, run: Bucket[], toY: ToY, stroke: string,
  dashed: boolean,
): void {
  if (run.length === 1 && run[0]) {
    ctx.fillStyle = stroke;
    ctx.beginPath();
    ctx.arc(toX(plot, track.x(run[0])), toY(run[0].last) ?? 0, 2.5, 0, 2 * Math.PI);
    ctx.fill();
    return;
  }
  ctx.strokeStyle = stroke;
  ctx.lineWidth = 1.5;
  ctx.lineJoin = "round";
  ctx.setLineDash(dashed ? [5, 3] : []);
  ctx.beginPath();
  run.forEach((bucket, i) => {
    const x = toX(plot, track.x(bucket));
    const y = toY(bucket.last) ?? 0;
    if (i === 0) ctx.moveTo(x, y);
    else ctx.lineTo(x, y);
  });
  ctx.stroke();
  ctx.setLineDash([]);
}

// A cross at the upper edge, because NaN has no height.
function paintNonfinite(
  ctx: CanvasRenderingContext2D, plot: Plot, { track, unreported, quiet }: Strand, buckets: Bucket[], tint: string,
): number {
  if (quiet) return 0;
  let values = 0;
  ctx.strokeStyle = tint;
  ctx.lineWidth = 2;
  for (const bucket of buckets) {
    const silent = unreported.filter((step) => step >= bucket.key && step < bucket.key + track.width).length;
    if (bucket.nonfinite <= silent || bucket.key > plot.to || bucket.key + track.width <= plot.from) continue;
    values += bucket.nonfinite - silent;
    const x = toX(plot, track.x(bucket));
    const y = plot.top + 7;
    ctx.beginPath();
    ctx.moveTo(x - 4, y - 4);
    ctx.lineTo(x + 4, y + 4);
    ctx.moveTo(x + 4, y - 4);
    ctx.lineTo(x - 4, y + 4);
    ctx.stroke();
  }
  return values;
}
