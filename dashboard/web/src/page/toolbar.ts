// SPDX-License-Identifier: Apache-2.0
// Controls of the view: number of steps, generations, bands, and pause.

import type { RunModel } from "../data/run_model";
import { h, setText } from "../ui/dom";
import { step } from "../ui/format";
import type { View } from "../data/view";

const TAILS: [string, number | null][] = [["All", null], ["Last 5k", 5000], ["Last 1k", 1000], ["Last 200", 200]];

export class Toolbar {
  readonly element: HTMLElement;
  private readonly rangeText = h("span", { class: "range-text", id: "range" });
  private readonly reset = h("button", { class: "chip", id: "reset-zoom", onclick: () => this.view.setZoom(null) }, "Reset zoom");
  private readonly tails: HTMLButtonElement[];
  private readonly band: HTMLButtonElement;
  private readonly replaced: HTMLButtonElement;
  private readonly pause: HTMLButtonElement;

  constructor(private readonly model: RunModel, private readonly view: View) {
    this.tails = TAILS.map(([text, steps]) => h("button", { class: "segment", onclick: () => view.setTail(steps) }, text));
    this.band = h("button", { class: "chip", id: "toggle-band", title: "Show the least and the largest value of every bucket (b)",
      onclick: () => view.style(() => (view.envelopes = !view.envelopes)) }, "Min–max band");
    this.replaced = h("button", { class: "chip", id: "toggle-replaced", title: "Show the steps that a restart did again (g)",
      onclick: () => view.style(() => (view.replacedSteps = !view.replacedSteps)) }, "Replaced steps");
    this.pause = h("button", { class: "chip", id: "pause", title: "Stop and continue live updates (p)",
      onclick: () => view.setPaused(!view.paused) }, "Pause");
    this.element = h("div", { class: "toolbar", role: "toolbar", "aria-label": "View" },
      h("div", { class: "segments" }, ...this.tails), this.rangeText, this.reset,
      h("span", { class: "spacer" }), this.replaced, this.band, this.pause);
    this.update();
  }

  update(): void {
    const { view, model } = this;
    const range = view.range(model.generations);
    setText(this.rangeText, `steps ${step(Math.round(range.from))} – ${step(Math.round(range.to))}`);
    this.reset.hidden = view.zoom === null;
    this.tails.forEach((button, i) =>
      button.setAttribute("aria-pressed", String(view.zoom === null && view.tail === TAILS[i]?.[1])));
    this.band.setAttribute("aria-pressed", String(view.envelopes));
    this.replaced.setAttribute("aria-pressed", String(view.replacedSteps));
    this.replaced.hidden = model.generations.length < 2;
    this.pause.setAttribute("aria-pressed", String(view.paused));
    setText(this.pause, view.paused ? "Paused – continue" : "Pause");
  }
}
