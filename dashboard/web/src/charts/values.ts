// SPDX-License-Identifier: Apache-2.0
// Values of a series at a step: in the valid launch and in earlier ones that also ran the step.

import { replacedFrom } from "../data/lineage";
import type { Bucket } from "../data/track";
import type { PanelContext } from "./panel";

export interface ValueAt {
  generation: number;
  bucket: Bucket;
  replaced: boolean;
}

// The newest launch first. The valid value may be up to `reach` steps away, for series that are not
// reported at every step.
export function valuesAt(context: PanelContext, seriesId: number, at: number, reach: number): ValueAt[] {
  const { model, view, cache } = context;
  const step = Math.round(at);
  const found: ValueAt[] = [];
  for (const { generation, step_first } of [...model.generations].reverse()) {
    const track = cache.track(seriesId, generation);
    if (!track || step_first >= step + track.width) continue;
    const replaced = replacedFrom(model.generations, generation) <= step;
    if (replaced && !view.replacedSteps) continue;
    const bucket = replaced ? track.containing(step) : track.nearest(step, reach);
    if (bucket) found.push({ generation, bucket, replaced });
  }
  return found;
}

// Steps whose NaN means that no value was reported: statistics of an update are in the row of the next
// step, so the first row of a launch and the row after a skipped step have none
// (docs/reference/metrics.md).
export function unreportedSteps({ model }: PanelContext, generation: number): number[] {
  const first = model.generations.filter((one) => one.generation === generation).map((one) => one.step_first);
  const skipped = model.events.filter((event) => event.kind === "step_skipped" && event.generation === generation);
  return [...first, ...skipped.map((event) => event.step + 1)];
}
