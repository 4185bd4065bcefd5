// SPDX-License-Identifier: Apache-2.0
// Helpers of the functions that build panels.

import type { LineChart, Curve } from "../charts/line_chart";
import type { Panel, PanelContext } from "../charts/panel";
import type { SeriesInfo } from "../data/types";
import { h } from "../ui/dom";
import type { MetricNote } from "./metric_notes";

export interface Contexts {
  lines: PanelContext;
  maps: PanelContext;
  onVisible: () => void;
}

export type ChartOptions = ConstructorParameters<typeof LineChart>[0];

export function curve(label: string, info: SeriesInfo | undefined): Curve[] {
  return info ? [{ label, seriesId: info.id }] : [];
}

export function withSeries(panels: Panel[]): Panel[] {
  return panels.filter((panel) => panel.series().length > 0);
}

// A selection that is stored in the address.
export function menu(
  { view }: PanelContext, name: string, label: string, value: string, options: string[][],
): HTMLElement {
  const select = h("select", { "aria-label": label, name });
  for (const [key, text, title] of options) {
    select.append(h("option", { value: key ?? "", selected: key === value, title }, text ?? ""));
  }
  select.addEventListener("change", () => view.select(() => view.choices.set(name, select.value)));
  return select;
}

// A selection among those `notes` whose metrics the run has.
export class NoteMenu {
  constructor(
    private readonly context: PanelContext, private readonly choice: string, private readonly notes: MetricNote[],
  ) {}

  get chosen(): MetricNote {
    const offered = this.offered();
    const wanted = this.context.view.choice(this.choice, "");
    return offered.find((note) => note.name === wanted) ?? offered[0] ?? this.notes[0] as MetricNote;
  }

  rows(): SeriesInfo[] {
    return this.context.model.catalog.all(this.chosen.name);
  }

  tools(): HTMLElement[] {
    const offered = this.offered();
    return offered.length < 2 ? [] : [menu(this.context, this.choice, "Metric", this.chosen.name,
      offered.map((note) => [note.name, note.label, note.what]))];
  }

  describe(): { text: string; unit: string } {
    return { text: this.chosen.what, unit: this.chosen.unit };
  }

  private offered(): MetricNote[] {
    return this.notes.filter((note) => this.context.model.catalog.has(note.name));
  }
}
