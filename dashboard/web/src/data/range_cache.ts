// SPDX-License-Identifier: Apache-2.0
// The tracks the charts draw from: loaded for a window of steps, then extended at the end.
//
// Old tracks stay visible until their replacement has arrived. A late answer for an older window is
// discarded.

import { fetchRange } from "./api";
import { Track } from "./track";

// The visible steps [from, to) of these generations; `to` is -1 if the end is open.
export interface Window {
  from: number;
  to: number;
  generations: number[];
}

const OVERLAP_BUCKETS = 8; // ranks report a few steps apart
const SERIES_PER_REQUEST = 2048;

export class RangeCache {
  private tracks = new Map<number, Map<number, Track>>(); // series -> generation
  private loaded = new Set<number>();
  private loading = new Set<number>();
  private window: Window = { from: 0, to: -1, generations: [] };
  private epoch = 0;
  private abort = new AbortController();

  constructor(
    private readonly runId: string,
    private readonly bucketsFor: (seriesCount: number) => number,
  ) {}

  track(series: number, generation: number): Track | undefined {
    return this.tracks.get(series)?.get(generation);
  }

  // Declares everything stale: the next `ensure` loads for this window.
  setWindow(window: Window): void {
    this.window = window;
    this.epoch++;
    this.abort.abort();
    this.abort = new AbortController();
    this.loaded.clear();
    this.loading.clear();
  }

  // Loads the part of `series` that is missing in the window. True if something arrived.
  async ensure(series: number[]): Promise<boolean> {
    const missing = series.filter((id) => !this.loaded.has(id) && !this.loading.has(id));
    if (missing.length === 0 || this.window.generations.length === 0) return false;
    const epoch = this.epoch;
    missing.forEach((id) => this.loading.add(id));
    try {
      for (let i = 0; i < missing.length; i += SERIES_PER_REQUEST) {
        await this.load(missing.slice(i, i + SERIES_PER_REQUEST), missing.length, epoch);
      }
    } finally {
      if (epoch === this.epoch) missing.forEach((id) => this.loading.delete(id));
    }
    return epoch === this.epoch;
  }

  // Fetches only the new steps of one generation. False if a full load is needed.
  async extend(series: number[], generation: number, lastStep: number): Promise<boolean> {
    const epoch = this.epoch;
    const ready = series.filter((id) => this.loaded.has(id));
    const widths = new Map<number, number[]>();
    for (const id of ready) {
      const width = this.track(id, generation)?.width ?? 1;
      widths.set(width, [...(widths.get(width) ?? []), id]);
    }
    for (const [width, ids] of widths) {
      if (!(await this.extendGroup(ids, generation, lastStep, width, epoch))) return false;
    }
    return true;
  }

  private async load(series: number[], total: number, epoch: number): Promise<void> {
    const { from, to, generations } = this.window;
    const buckets = this.bucketsFor(total * generations.length);
    const entries = await fetchRange(
      this.runId, { series, generations, from, to, buckets }, this.abort.signal);
    if (epoch !== this.epoch) return;
    for (const id of series) {
      this.tracks.set(id, new Map());
      this.loaded.add(id);
    }
    for (const entry of entries) {
      this.tracks.get(entry.seriesId)?.set(entry.generation, new Track(entry));
    }
  }

  private async extendGroup(
    ids: number[], generation: number, lastStep: number, width: number, epoch: number,
  ): Promise<boolean> {
    let newest = -1;
    let longest = 0;
    for (const id of ids) {
      const track = this.track(id, generation);
      newest = Math.max(newest, track?.lastBucket?.key ?? -1);
      longest = Math.max(longest, track?.buckets.length ?? 0);
    }
    const end = (Math.floor(lastStep / width) + 1) * width;
    const floor = Math.floor(this.window.from / width) * width;
    const begin = Math.max(floor, newest - OVERLAP_BUCKETS * width, 0);
    const buckets = Math.max(2, (end - begin) / width); // the server's minimum
    if (end <= begin) return true;
    if (longest + buckets > 2 * this.bucketsFor(ids.length)) return false;
    const entries = await fetchRange(
      this.runId, { series: ids, generations: [generation], from: begin, to: end, buckets },
      this.abort.signal);
    if (epoch !== this.epoch) return true;
    return entries.every((entry) => {
      const track = this.track(entry.seriesId, generation);
      if (track) return track.merge(entry);
      this.tracks.get(entry.seriesId)?.set(generation, new Track(entry));
      return true;
    });
  }
}
