// SPDX-License-Identifier: Apache-2.0
// The buckets of one series in one generation, growing at the end while a run is live.
//
// Buckets start at multiples of `width` steps, so an appended tail replaces
// exactly the buckets it covers and nothing on the screen moves.

import type { RangeEntry } from "./range_codec";

export interface Bucket {
  key: number; // first step of the bucket on the grid
  min: number; // NaN if the bucket has no finite value
  max: number;
  last: number;
  count: number;
  nonfinite: number;
}

export class Track {
  readonly width: number;
  readonly buckets: Bucket[] = [];

  constructor(entry: RangeEntry) {
    this.width = entry.bucketSteps;
    this.append(entry);
  }

  // The step at which the bucket's point is drawn: the middle of its steps.
  x(bucket: Bucket): number {
    return bucket.key + (this.width - 1) / 2;
  }

  get lastBucket(): Bucket | undefined {
    return this.buckets[this.buckets.length - 1];
  }

  // False if the tail is coarser than this track; then a full load is needed.
  merge(tail: RangeEntry): boolean {
    if (tail.bucketSteps > this.width) return false;
    const begin = this.keyOf(tail.stepBegin);
    while (this.buckets.length > 0 && (this.lastBucket?.key ?? 0) >= begin) {
      this.buckets.pop();
    }
    this.append(tail);
    return true;
  }

  // Index of the first bucket with key > step - width, which is the first that ends at or after `step`.
  lowerBound(step: number): number {
    let low = 0;
    let high = this.buckets.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if ((this.buckets[middle]?.key ?? 0) + this.width <= step) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  // The bucket that covers `step`.
  containing(step: number): Bucket | undefined {
    const bucket = this.buckets[this.lowerBound(step)];
    return bucket && bucket.key <= step ? bucket : undefined;
  }

  // The bucket nearest to `step`, no farther than `reach` steps.
  nearest(step: number, reach: number): Bucket | undefined {
    const index = this.lowerBound(step);
    let best: Bucket | undefined;
    for (const candidate of [this.buckets[index - 1], this.buckets[index]]) {
      if (!candidate) continue;
      const distance = Math.abs(this.x(candidate) - step);
      if (distance <= Math.max(reach, this.width) && (!best || distance < Math.abs(this.x(best) - step))) {
        best = candidate;
      }
    }
    return best;
  }

  private keyOf(step: number): number {
    return Math.floor(step / this.width) * this.width;
  }

  private append(entry: RangeEntry): void {
    for (let i = 0; i < entry.stepFirst.length; ++i) {
      const key = this.keyOf(entry.stepFirst[i] ?? 0);
      const count = entry.count[i] ?? 0;
      const bucket: Bucket = {
        key,
        min: count > 0 ? (entry.min[i] ?? NaN) : NaN,
        max: count > 0 ? (entry.max[i] ?? NaN) : NaN,
        last: count > 0 ? (entry.last[i] ?? NaN) : NaN,
        count,
        nonfinite: entry.nonfinite[i] ?? 0,
      };
      const before = this.lastBucket;
      if (before && before.key === key) combine(before, bucket);
      else this.buckets.push(bucket);
    }
  }
}

function combine(into: Bucket, later: Bucket): void {
  if (later.count > 0) {
    into.min = into.count > 0 ? Math.min(into.min, later.min) : later.min;
    into.max = into.count > 0 ? Math.max(into.max, later.max) : later.max;
    into.last = later.last;
  }
  into.count += later.count;
  into.nonfinite += later.nonfinite;
}
