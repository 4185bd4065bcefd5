// SPDX-License-Identifier: Apache-2.0
// The reader's settings: one object, stored in the address bar and shared by all panels.

import { lastKeptStep } from "./lineage";
import type { GenerationInfo } from "./types";

export interface Zoom {
  from: number;
  to: number; // inclusive
}

export type ViewChange = "range" | "cursor" | "style" | "pause";

// Event kinds so frequent that their marks would hide the curves.
const QUIET_KINDS = ["gradient_clipped", "command_applied"];

export class View {
  zoom: Zoom | null = null;
  tail: number | null = null; // length of the window in steps, up to the newest; null shows all steps
  cursor: number | null = null; // a step, shared by all panels
  paused = false;
  envelopes = true;
  replacedSteps = true; // shows steps that a restart did again
  logScales = new Set<string>();
  hiddenKinds = new Set<string>(QUIET_KINDS);
  choices = new Map<string, string>(); // selections inside panels: statistic, layer, rank
  private still: Zoom | null = null; // the steps that a paused page shows while the run continues
  private listeners: ((change: ViewChange) => void)[] = [];

  constructor() {
    this.read(new URLSearchParams(location.search));
  }

  onChange(listener: (change: ViewChange) => void): void {
    this.listeners.push(listener);
  }

  setZoom(zoom: Zoom | null): void {
    this.zoom = zoom;
    this.still = null;
    if (zoom) this.tail = null;
    this.changed("range");
  }

  setTail(steps: number | null): void {
    this.tail = steps;
    this.zoom = null;
    this.still = null;
    this.changed("range");
  }

  setCursor(step: number | null): void {
    if (this.cursor === step) return;
    this.cursor = step;
    this.notify("cursor");
  }

  setPaused(paused: boolean): void {
    this.paused = paused;
    this.notify("pause");
  }

  // Changes a setting that needs a redraw only.
  style(change: () => void): void {
    change();
    this.changed("style");
  }

  // Changes a setting that needs other data to be loaded.
  select(change: () => void): void {
    change();
    this.changed("range");
  }

  choice(name: string, fallback: string): string {
    return this.choices.get(name) ?? fallback;
  }

  // The steps on the screen.
  range(all: GenerationInfo[]): Zoom {
    if (this.zoom) return this.zoom;
    if (!this.paused || !this.still) this.still = this.newestRange(all);
    return this.still;
  }

  private newestRange(all: GenerationInfo[]): Zoom {
    const reached = this.replacedSteps ? Math.max(0, ...all.map((one) => one.step_last)) : lastKeptStep(all);
    const last = Math.max(1, reached);
    const first = all.length > 0 ? Math.min(...all.map((one) => one.step_first)) : 0;
    const from = this.tail ? Math.max(first, last - this.tail + 1) : Math.max(0, first);
    return { from: Math.min(from, last - 1), to: last };
  }

  private changed(change: ViewChange): void {
    this.write();
    this.notify(change);
  }

  private notify(change: ViewChange): void {
    for (const listener of this.listeners) listener(change);
  }

  private read(parameters: URLSearchParams): void {
    const from = Number(parameters.get("from") ?? NaN);
    const to = Number(parameters.get("to") ?? NaN);
    if (Number.isFinite(from) && Number.isFinite(to) && to > from) this.zoom = { from, to };
    const tail = Number(parameters.get("tail") ?? NaN);
    if (tail > 0) this.tail = tail;
    this.envelopes = parameters.get("band") !== "0";
    this.replacedSteps = parameters.get("replaced") !== "0";
    this.logScales = new Set(split(parameters.get("log")));
    const hidden = parameters.get("hide");
    if (hidden !== null) this.hiddenKinds = new Set(split(hidden));
    for (const [name, value] of parameters) {
      if (name.startsWith("c.")) this.choices.set(name.slice(2), value);
    }
  }

  private write(): void {
    const parameters = new URLSearchParams(location.search);
    for (const name of [...parameters.keys()]) {
      if (name !== "run") parameters.delete(name);
    }
    if (this.zoom) {
      parameters.set("from", String(Math.round(this.zoom.from)));
      parameters.set("to", String(Math.round(this.zoom.to)));
    }
    if (this.tail) parameters.set("tail", String(this.tail));
    if (!this.envelopes) parameters.set("band", "0");
    if (!this.replacedSteps) parameters.set("replaced", "0");
    if (this.logScales.size > 0) parameters.set("log", [...this.logScales].join(","));
    if ([...this.hiddenKinds].sort().join() !== [...QUIET_KINDS].sort().join()) {
      parameters.set("hide", [...this.hiddenKinds].join(","));
    }
    for (const [name, value] of this.choices) parameters.set(`c.${name}`, value);
    history.replaceState(null, "", `?${parameters.toString()}`);
  }
}

function split(text: string | null): string[] {
  return (text ?? "").split(",").filter((part) => part !== "");
}
