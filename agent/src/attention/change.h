// SPDX-License-Identifier: Apache-2.0
// Comparison of attention schedules, for a run that resumes under a different one.
#pragma once

#include <muster/agent/attention_schedule.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace muster::agent {

// True if the layer, one of `layers`, is under block attention at some step.
[[nodiscard]] bool uses_moba(
    const AttentionSchedule& schedule, std::int64_t layer, std::int64_t layers);

// The first layer, by step and then by layer, that attends differently under two schedules.
struct AttentionDifference {
  std::int64_t layer{0};
  std::int64_t step{0};
  AttentionMode before;
  AttentionMode now;
};

// First difference from `step` on, for sequences long enough for blocks to matter; nullopt if the
// schedules are equivalent, whatever their text. Both must be valid.
[[nodiscard]] std::optional<AttentionDifference> difference_from(
    const AttentionSchedule& before,
    const AttentionSchedule& now,
    std::int64_t layers,
    std::int64_t step);

}  // namespace muster::agent
