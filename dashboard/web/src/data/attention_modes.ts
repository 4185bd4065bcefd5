// SPDX-License-Identifier: Apache-2.0
// The mode of each attention layer: full or blocks by its samples, and the blocks by the events of changes.

import type { GenerationInfo, RunEvent } from "./types";

export const MODE_CHANGED = "attention_mode_changed";

// "full", "moba:512,3"; "blocks" where no event names them. `mode` is the layer's sample at the step.
export function modeText(
  { events, generations }: { events: RunEvent[]; generations: GenerationInfo[] },
  layer: number, generation: number, step: number, mode: number,
): string {
  if (mode <= 0) return "full";
  const changes = events
    .filter((event) => event.kind === MODE_CHANGED && event.labels["layer"] === String(layer))
    .filter((event) => ledTo(event, generations, generation))
    .sort((a, b) => a.step - b.step);
  const after = changes.findIndex((event) => event.step > step);
  const last = after < 0 ? changes.length - 1 : after - 1;
  const text = last >= 0 ? changes[last]?.labels["to"] : changes[after]?.labels["from"];
  return text?.startsWith("moba") ? text : "blocks";
}

// Events of an earlier launch are valid up to the step at which a later one, this one included, took over.
function ledTo(event: RunEvent, generations: GenerationInfo[], generation: number): boolean {
  if (event.generation > generation) return false;
  const later = generations.filter((one) => one.generation > event.generation && one.generation <= generation);
  return later.every((one) => event.step < one.step_first);
}

export interface LayerMode {
  layer: number;
  text: string;
}

// "layers 0–2 moba:512,3 · layer 3 full"
export function summarise(modes: LayerMode[]): string {
  const parts: string[] = [];
  for (let i = 0; i < modes.length; ++i) {
    const first = modes[i];
    if (!first) break;
    while (modes[i + 1]?.text === first.text && modes[i + 1]?.layer === (modes[i]?.layer ?? 0) + 1) ++i;
    const last = modes[i]?.layer ?? first.layer;
    parts.push(`${last > first.layer ? `layers ${first.layer}–${last}` : `layer ${first.layer}`} ${first.text}`);
  }
  return parts.join(" · ");
}
