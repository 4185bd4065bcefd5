// SPDX-License-Identifier: Apache-2.0
// Attention in a checkpoint: the schedule it was saved under, and the mode of each layer in its
// last step.
#pragma once

#include "agent/src/attention/change.h"
#include "agent/src/checkpoint/shared_state_text.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace muster::agent {

struct AttentionState {
  std::optional<AttentionSchedule> schedule;  // full attention if nullopt
  std::vector<AttentionMode> modes;           // [attention layers], or empty if unknown
};

void write_attention(const AttentionState& state, TextValues& values);

// A checkpoint that predates block attention has neither value: full attention. kDataLoss names the
// value that does not parse.
[[nodiscard]] Expected<AttentionState> read_attention(const TextValues& values);

// Difference between the schedule of a checkpoint and that of this run.
struct ScheduleChange {
  AttentionDifference first;
  std::string before;  // schedule in one line
  std::string now;

  // Text for people: both schedules and their first difference.
  [[nodiscard]] std::string describe() const;
};

// nullopt if the schedules are equivalent from `step` on.
[[nodiscard]] std::optional<ScheduleChange> schedule_change(
    const std::optional<AttentionSchedule>& before,
    const std::optional<AttentionSchedule>& now,
    std::int64_t layers,
    std::int64_t step);

}  // namespace muster::agent
