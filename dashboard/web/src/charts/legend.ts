// SPDX-License-Identifier: Apache-2.0
// The names of a chart's curves with their value at the cursor; a click hides or shows one.

import { fill, h, setText } from "../ui/dom";

interface Entry {
  label: string;
  color: string;
  seriesId: number;
}

export class Legend {
  readonly element = h("div", { class: "legend" });
  private readonly list = h("div", { class: "legend-list" });
  private readonly noteElement = h("span", { class: "note" });
  private readonly hidden = new Set<string>();
  private shown = "";
  private values: { element: HTMLElement; entry: Entry }[] = [];

  constructor(private readonly onToggle: () => void) {
    this.element.append(this.list, this.noteElement);
  }

  isHidden(label: string): boolean {
    return this.hidden.has(label);
  }

  note(text: string): void {
    setText(this.noteElement, text);
  }

  show(entries: Entry[], value: (entry: Entry) => string): void {
    const key = JSON.stringify([entries, [...this.hidden]]);
    if (key !== this.shown) {
      this.shown = key;
      this.rebuild(entries);
    }
    for (const { element, entry } of this.values) setText(element, value(entry));
  }

  private rebuild(entries: Entry[]): void {
    this.values = [];
    fill(this.list, ...entries.map((entry) => {
      const dot = h("span", { class: "dot" });
      dot.style.background = entry.color;
      const value = h("b", {});
      this.values.push({ element: value, entry });
      return h(
        "button",
        { class: "legend-item", "aria-pressed": String(!this.hidden.has(entry.label)),
          onclick: () => this.toggle(entry.label, entries) },
        dot, h("span", {}, entry.label), value);
    }));
  }

  private toggle(label: string, entries: Entry[]): void {
    if (entries.length < 2) return;
    if (!this.hidden.delete(label)) this.hidden.add(label);
    this.onToggle();
  }
}
