// SPDX-License-Identifier: Apache-2.0
// The box beside the cursor: the step, its values, and the events whose marks are under the pointer.

import type { RunEvent } from "../data/types";
import { fill, h, type Child } from "../ui/dom";
import { number, step as stepText, words } from "../ui/format";
import { eventVariable } from "./palette";

export class Tooltip {
  readonly element = h("div", { class: "tooltip", role: "status", hidden: true });

  hide(): void {
    this.element.hidden = true;
  }

  // `x`, `y` inside `width` pixels of the panel's body.
  show(x: number, y: number, width: number, ...rows: Child[]): void {
    fill(this.element, ...rows);
    this.element.hidden = false;
    const box = this.element.offsetWidth;
    const left = x + 14 + box > width ? Math.max(0, x - 14 - box) : x + 14;
    this.element.style.transform = `translate(${Math.round(left)}px, ${Math.round(y)}px)`;
  }
}

export function stepRow(first: number, width: number): HTMLElement {
  const text = width > 1 ? `steps ${stepText(first)}–${stepText(first + width - 1)}` : `step ${stepText(first)}`;
  return h("div", { class: "tooltip-step" }, text);
}

// A replaced value belongs to steps that a later launch did again.
export function valueRow(label: string, value: string, color: string | null, replaced: boolean): HTMLElement {
  const dot = color === null ? null : h("span", { class: "dot" });
  if (dot) dot.style.background = color ?? "";
  return h("div", { class: replaced ? "tooltip-row replaced" : "tooltip-row" }, dot, h("span", {}, label), h("b", {}, value));
}

export function eventRow(event: RunEvent): HTMLElement {
  const dot = h("span", { class: "dot" });
  dot.style.background = `var(${eventVariable(event.kind)})`;
  const inputs = Object.entries(event.inputs).slice(0, 6).map(([name, value]) =>
    h("span", { class: "input" }, `${words(name)} `, h("b", {}, typeof value === "number" ? number(value) : value)));
  return h(
    "div", { class: "tooltip-event" },
    h("div", {}, dot, h("b", {}, words(event.kind)), ` at step ${stepText(event.step)}`),
    event.reason ? h("div", { class: "reason" }, event.reason) : null,
    inputs.length > 0 ? h("div", { class: "inputs" }, ...inputs) : null);
}
