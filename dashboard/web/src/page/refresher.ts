// SPDX-License-Identifier: Apache-2.0
// Decides when to fetch and when to draw: once per frame, once at a time, only what is visible, only
// what is new.

import type { Panel } from "../charts/panel";
import type { RangeCache } from "../data/range_cache";
import type { RunModel } from "../data/run_model";
import type { View } from "../data/view";

const TAIL_INTERVAL_MS = 400;
const GENERATIONS_MAX = 64; // the server's limit per request
const RECONCILE_MS = 60000; // a full load from time to time, for ranks that reported very late

export interface PanelGroup {
  cache: RangeCache;
  panels: Panel[];
  alwaysWanted: () => number[]; // series that the page needs in addition to its panels
}

export class Refresher {
  private groups: PanelGroup[] = [];
  private frame = 0;
  private running = false;
  private again = false;
  private tailDue = false;
  private tailTimer = 0;
  private loadedAt = 0;

  constructor(
    private readonly model: RunModel,
    private readonly view: View,
    private readonly onError: (message: string | null) => void,
    private readonly onPainted: () => void,
  ) {}

  setGroups(groups: PanelGroup[]): void {
    this.groups = groups;
    this.reload();
  }

  // The range, the generations or the series changed: load for the new window.
  reload(): void {
    const { view, model } = this;
    let from = 0;
    let to = -1;
    if (view.zoom) {
      const pad = Math.max(1, Math.round((view.zoom.to - view.zoom.from) * 0.02));
      from = Math.max(0, Math.floor(view.zoom.from) - pad);
      to = Math.ceil(view.zoom.to) + pad + 1;
    } else if (view.tail) {
      from = Math.max(0, model.run.last_step - 2 * view.tail);
    }
    // Always requests the newest launch, because its steps may enter the window later.
    const generations = model.generations
      .filter((one, i, all) => i === all.length - 1 || (one.step_last >= from && (to < 0 || one.step_first < to)))
      .map((one) => one.generation).slice(-GENERATIONS_MAX);
    for (const group of this.groups) group.cache.setWindow({ from, to, generations });
    this.loadedAt = performance.now();
    this.run();
  }

  // New steps exist.
  follow(): void {
    if (this.view.paused || this.tailTimer !== 0) return;
    this.tailTimer = window.setTimeout(() => {
      this.tailTimer = 0;
      if (performance.now() - this.loadedAt > RECONCILE_MS) {
        this.reload();
        return;
      }
      this.tailDue = true;
      this.run();
    }, TAIL_INTERVAL_MS);
  }

  // Fetches what is missing, then draws.
  run(): void {
    this.paint();
    if (this.running) {
      this.again = true;
      return;
    }
    this.running = true;
    void this.fetch().finally(() => {
      this.running = false;
      this.paint();
      if (this.again) {
        this.again = false;
        this.run();
      }
    });
  }

  paint(): void {
    if (this.frame !== 0) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      for (const { panels } of this.groups) {
        for (const panel of panels) {
          if (panel.isVisible) panel.paint();
        }
      }
      this.onPainted();
    });
  }

  showCursor(): void {
    for (const { panels } of this.groups) {
      for (const panel of panels) {
        if (panel.isVisible) panel.showCursor();
      }
    }
  }

  private async fetch(): Promise<void> {
    const tail = this.tailDue;
    this.tailDue = false;
    try {
      for (const group of this.groups) {
        const ids = new Set(group.alwaysWanted());
        for (const panel of group.panels) {
          if (panel.isVisible) panel.series().forEach((id) => ids.add(id));
        }
        await group.cache.ensure([...ids]);
        if (tail && this.endIsVisible() && !(await this.extend(group, [...ids]))) {
          this.again = false;
          this.reload();
        }
      }
      this.onError(null);
    } catch (error) {
      if (error instanceof DOMException && error.name === "AbortError") return;
      this.onError(error instanceof Error ? error.message : String(error));
    }
  }

  private extend(group: PanelGroup, ids: number[]): Promise<boolean> {
    return group.cache.extend(ids, this.model.run.generation, this.model.run.last_step);
  }

  private endIsVisible(): boolean {
    const { zoom } = this.view;
    const known = this.model.generations.some((one) => one.generation === this.model.run.generation);
    return known && (zoom === null || zoom.to >= this.model.run.last_step - 1);
  }
}
