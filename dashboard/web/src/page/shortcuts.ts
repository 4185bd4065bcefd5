// SPDX-License-Identifier: Apache-2.0
// Keyboard shortcuts, ignored while a field or a dialog has the focus.

import type { RunModel } from "../data/run_model";
import { h } from "../ui/dom";
import { toggleTheme } from "../ui/theme";
import type { View } from "../data/view";

const KEYS: [string, string][] = [
  ["← →", "move a quarter of the range"],
  ["+ −", "zoom in and out"],
  ["0", "all steps"],
  ["p", "pause live updates"],
  ["b", "min–max band"],
  ["g", "steps that a restart replaced"],
  ["t", "dark or light"],
  ["?", "this list"],
];

export function bindShortcuts(view: View, model: RunModel): void {
  const actions: Record<string, () => void> = {
    ArrowLeft: () => move(view, model, -0.25),
    ArrowRight: () => move(view, model, 0.25),
    "+": () => scale(view, model, 0.5),
    "-": () => scale(view, model, 2),
    "0": () => view.setTail(null),
    p: () => view.setPaused(!view.paused),
    b: () => view.style(() => (view.envelopes = !view.envelopes)),
    g: () => view.style(() => (view.replacedSteps = !view.replacedSteps)),
    t: toggleTheme,
    "?": showHelp,
  };
  document.addEventListener("keydown", (event) => {
    const busy = event.target instanceof Element && event.target.closest("input, select, textarea, dialog");
    if (busy || event.ctrlKey || event.metaKey || event.altKey) return;
    const action = actions[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  });
}

function move(view: View, model: RunModel, part: number): void {
  const range = view.range(model.generations);
  const by = Math.round((range.to - range.from) * part);
  const from = Math.max(0, range.from + by);
  view.setZoom({ from, to: from + (range.to - range.from) });
}

function scale(view: View, model: RunModel, factor: number): void {
  const range = view.range(model.generations);
  const middle = view.cursor ?? (range.from + range.to) / 2;
  const half = Math.max(2, ((range.to - range.from) / 2) * factor);
  const from = Math.max(0, Math.round(middle - half));
  view.setZoom({ from, to: Math.round(middle + half) });
}

export function showHelp(): void {
  const dialog = h("dialog", { class: "help" },
    h("h2", {}, "Keys"),
    h("dl", { class: "inputs" }, ...KEYS.flatMap(([key, text]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, text)])),
    h("p", { class: "note" }, "Drag over a chart to zoom, double-click to see all steps."),
    h("form", { method: "dialog" }, h("button", { class: "quiet" }, "Close")));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}
