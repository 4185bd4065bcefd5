// SPDX-License-Identifier: Apache-2.0
// The vertical scale of a chart: from the values on the screen, linear or logarithmic.

import type { Strand } from "./curve_painter";

export interface Extent {
  min: number;
  max: number;
}

const DEFAULT: Extent = { min: 0, max: 1 };

// Over the buckets between the two steps; with `log`, of positive values only.
export function extentOf(
  strands: Strand[], from: number, to: number, bands: boolean, log: boolean,
): Extent {
  let min = Infinity;
  let max = -Infinity;
  const take = (value: number) => {
    if (!Number.isFinite(value) || (log && value <= 0)) return;
    min = Math.min(min, value);
    max = Math.max(max, value);
  };
  for (const { track, begin, end } of strands) {
    for (let i = track.lowerBound(Math.max(from, begin)); i < track.buckets.length; ++i) {
      const bucket = track.buckets[i];
      if (!bucket || bucket.key > to || bucket.key >= end) break;
      if (bucket.count === 0) continue;
      take(bucket.last);
      if (bands) {
        take(bucket.min);
        take(bucket.max);
      }
    }
  }
  if (min > max) return log ? { min: 0.1, max: 1 } : DEFAULT;
  return log ? padLog(min, max) : padLinear(min, max);
}

function padLinear(min: number, max: number): Extent {
  if (min === max) {
    const pad = Math.abs(min) * 0.1 || 1;
    return { min: min - pad, max: max + pad };
  }
  const pad = (max - min) * 0.06;
  // The axis of a quantity that is never negative starts at 0.
  return { min: min >= 0 ? Math.max(0, min - pad) : min - pad, max: max + pad };
}

function padLog(min: number, max: number): Extent {
  const factor = min === max ? 2 : (max / min) ** 0.05;
  return { min: min / factor, max: max * factor };
}
