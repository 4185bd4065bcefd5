// SPDX-License-Identifier: Apache-2.0
// The steps of each generation that led to the current model.
//
// A restart resumes from a checkpoint. Steps of the earlier launch before the checkpoint are part of the
// history of this model, later ones were replaced. Both are kept and drawn differently.

import type { GenerationInfo } from "./types";

// The first step of `generation` that a later one did again; Infinity if there is none.
export function replacedFrom(all: GenerationInfo[], generation: number): number {
  const later = all.filter((one) => one.generation > generation);
  return Math.min(Infinity, ...later.map((one) => one.step_first));
}

// The newest step that was not replaced.
export function lastKeptStep(all: GenerationInfo[]): number {
  return Math.max(0, ...all.map((one) => Math.min(one.step_last, replacedFrom(all, one.generation) - 1)));
}
