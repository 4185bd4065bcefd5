// Comparing attention schedules: whether a run may go on under another one than it was saved under.
#pragma once

#include <muster/agent/attention_schedule.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace muster::agent {

// Whether the layer, of `layers`, is under block attention at some step.
[[nodiscard]] bool uses_moba(
    const AttentionSchedule& schedule, std::int64_t layer, std::int64_t layers);

// The first place, by step and then by layer, at which two schedules say different things.
struct AttentionDifference {
  std::int64_t layer{0};
  std::int64_t step{0};
  AttentionMode before;
  AttentionMode now;
};

// From `step` on, of validated schedules, for sequences that are long enough for blocks to matter.
// Nothing: they say the same, however they are written.
[[nodiscard]] std::optional<AttentionDifference> difference_from(
    const AttentionSchedule& before,
    const AttentionSchedule& now,
    std::int64_t layers,
    std::int64_t step);

}  // namespace muster::agent
