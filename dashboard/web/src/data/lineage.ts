// Which steps of which generation led to the model as it is now.
//
// A restart resumes from a checkpoint: the steps of the earlier launch before that one are still
// history of this model, those after it were replaced. Both are kept; they look different.

import type { GenerationInfo } from "./types";

// The first step of `generation` that a later one did again; Infinity when none did.
export function replacedFrom(all: GenerationInfo[], generation: number): number {
  const later = all.filter((one) => one.generation > generation);
  return Math.min(Infinity, ...later.map((one) => one.step_first));
}

// The newest step that was not replaced.
export function lastKeptStep(all: GenerationInfo[]): number {
  return Math.max(0, ...all.map((one) => Math.min(one.step_last, replacedFrom(all, one.generation) - 1)));
}
