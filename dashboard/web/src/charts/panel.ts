// SPDX-License-Identifier: Apache-2.0
// The common part of charts and heatmaps: a card, a header, and the series to load.

import type { RangeCache } from "../data/range_cache";
import type { RunModel } from "../data/run_model";
import { fill, h, setText, type Child } from "../ui/dom";
import type { View } from "../data/view";

export interface PanelContext {
  model: RunModel;
  view: View;
  cache: RangeCache;
}

export abstract class Panel {
  readonly element: HTMLElement;
  protected readonly body = h("div", { class: "panel-body" });
  protected readonly tools = h("div", { class: "panel-tools" });
  protected readonly footer = h("div", { class: "panel-footer" });
  private readonly caption = h("p", { class: "panel-caption", hidden: true });
  private readonly unitElement = h("span", { class: "unit" });
  private readonly badge = h("span", { class: "badge bad", hidden: true });
  private visible = false;

  constructor(
    readonly id: string,
    title: string,
    unit: string,
    protected readonly context: PanelContext,
    onVisible: () => void,
    wide = false,
  ) {
    const heading = h("h3", {}, title, this.unitElement);
    this.unitElement.textContent = unit;
    this.element = h(
      "section", { class: wide ? "panel wide" : "panel", "data-chart": id, "aria-label": title },
      h("header", { class: "panel-header" }, heading, this.badge, this.tools), this.caption, this.body, this.footer);
    // Only panels on the screen, or close to it, fetch and draw.
    new IntersectionObserver((entries) => {
      this.visible = entries.some((entry) => entry.isIntersecting);
      if (this.visible) onVisible();
    }, { rootMargin: "200px" }).observe(this.element);
    new ResizeObserver(() => this.visible && this.paint()).observe(this.body);
  }

  get isVisible(): boolean {
    return this.visible;
  }

  // Ids of the series that the panel draws now.
  abstract series(): number[];

  // Draws from the cache. Cheap enough to call on every change.
  abstract paint(): void;

  // Follows the shared cursor.
  abstract showCursor(): void;

  protected setTools(...children: Child[]): void {
    fill(this.tools, ...children);
  }

  // One line below the title that describes the content.
  protected describe(text: string, unit?: string): void {
    setText(this.caption, text);
    this.caption.hidden = text === "";
    if (unit !== undefined) setText(this.unitElement, unit);
  }

  // Facts about the drawing, for the reader (the badge) and for tests (data attributes).
  protected report(facts: Record<string, number | string>, nonfinite: number): void {
    for (const [name, value] of Object.entries(facts)) {
      this.element.setAttribute(`data-${name}`, String(value));
    }
    this.element.setAttribute("data-nonfinite", String(nonfinite));
    this.badge.hidden = nonfinite === 0;
    this.badge.textContent = `${nonfinite} not finite`;
  }
}
