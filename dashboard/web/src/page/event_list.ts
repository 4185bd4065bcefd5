// SPDX-License-Identifier: Apache-2.0
// Events, newest first, with reason and inputs; the filters also select the marks on charts.

import { eventVariable } from "../charts/palette";
import type { RunModel } from "../data/run_model";
import type { RunEvent } from "../data/types";
import { fill, h } from "../ui/dom";
import { clockTime, number, step, words } from "../ui/format";
import type { View } from "../data/view";

const PAGE = 60;
const AROUND = 50; // steps shown on either side of an event

export class EventList {
  readonly element: HTMLElement;
  private readonly filters = h("div", { class: "filters" });
  private readonly list = h("ol", { class: "events" });
  private readonly more = h("button", { class: "quiet", onclick: () => this.showMore() }, "Show older");
  private readonly open = new Set<number>();
  private limit = PAGE;

  constructor(private readonly model: RunModel, private readonly view: View) {
    this.element = h("section", { class: "card", id: "events", "aria-label": "Events" },
      h("header", { class: "card-header" }, h("h2", {}, "Events"),
        h("span", { class: "note" }, "filters apply to the charts too")),
      this.filters, this.list, this.more);
    this.update();
  }

  update(): void {
    const kinds = new Map<string, number>();
    for (const event of this.model.events) kinds.set(event.kind, (kinds.get(event.kind) ?? 0) + 1);
    fill(this.filters, ...[...kinds].map(([kind, count]) => this.filter(kind, count)));
    const shown = this.model.events.filter((event) => !this.view.hiddenKinds.has(event.kind)).reverse();
    fill(this.list, ...shown.slice(0, this.limit).map((event) => this.row(event)));
    if (shown.length === 0) {
      const text = kinds.size === 0 ? "Nothing has happened yet." : "All kinds are filtered out.";
      this.list.append(h("li", { class: "empty" }, text));
    }
    this.more.hidden = shown.length <= this.limit;
  }

  private filter(kind: string, count: number): HTMLElement {
    const { hiddenKinds } = this.view;
    const dot = h("span", { class: "dot" });
    dot.style.background = `var(${eventVariable(kind)})`;
    const toggle = () => this.view.style(() => hiddenKinds.delete(kind) || hiddenKinds.add(kind));
    return h("button", { class: "chip", "aria-pressed": String(!hiddenKinds.has(kind)), "data-kind": kind,
      onclick: toggle }, dot, words(kind), h("span", { class: "count" }, String(count)));
  }

  private row(event: RunEvent): HTMLElement {
    const dot = h("span", { class: "dot" });
    dot.style.background = `var(${eventVariable(event.kind)})`;
    const details = h("details", { open: this.open.has(event.id) },
      h("summary", {},
        dot, h("span", { class: "event-kind" }, words(event.kind)),
        h("span", { class: "event-step" }, event.step >= 0 ? `step ${step(event.step)}` : ""),
        h("time", {}, clockTime(event.unix_ms)),
        h("span", { class: "event-reason" }, event.reason)),
      this.inputs(event));
    details.addEventListener("toggle", () => {
      if (details.open) this.open.add(event.id);
      else this.open.delete(event.id);
    });
    return h("li", { "data-event": event.id, "data-severity": event.severity }, details);
  }

  private inputs(event: RunEvent): HTMLElement {
    const rows = [
      ...Object.entries(event.inputs).map(([name, value]) => [words(name), typeof value === "number" ? number(value) : value]),
      ...Object.entries(event.labels).map(([name, value]) => [words(name), value]),
      ["generation", String(event.generation)],
      ...(event.rank >= 0 ? [["rank", String(event.rank)]] : []),
    ];
    const table = h("dl", { class: "inputs" }, ...rows.flatMap(([name, value]) => [h("dt", {}, name ?? ""), h("dd", {}, value ?? "")]));
    const zoom = event.step < 0 ? null : h(
      "button", { class: "quiet", onclick: () => this.view.setZoom({ from: Math.max(0, event.step - AROUND), to: event.step + AROUND }) },
      `Show ±${AROUND} steps`);
    return h("div", { class: "event-details" }, table, zoom);
  }

  private showMore(): void {
    this.limit += PAGE;
    this.update();
  }
}
