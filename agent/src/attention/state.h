// What a checkpoint says of attention: the schedule it was saved under, and how each layer attended
// in its last step.
#pragma once

#include "agent/src/attention/change.h"
#include "agent/src/checkpoint/shared_state_text.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace muster::agent {

struct AttentionState {
  std::optional<AttentionSchedule> schedule;  // Nothing: full attention always.
  std::vector<AttentionMode> modes;           // [attention layers]; empty: none were given.
};

void write_attention(const AttentionState& state, TextValues& values);

// A checkpoint from before there was a choice has neither: full attention. kDataLoss names the
// value that does not parse.
[[nodiscard]] Expected<AttentionState> read_attention(const TextValues& values);

// Whether a run saved under one schedule may go on under another at `step`. Nothing: they say the
// same from there on.
struct ScheduleChange {
  AttentionDifference first;
  std::string before;  // The schedules in one line.
  std::string now;

  // For people: both, and where they differ first.
  [[nodiscard]] std::string describe() const;
};

[[nodiscard]] std::optional<ScheduleChange> schedule_change(
    const std::optional<AttentionSchedule>& before,
    const std::optional<AttentionSchedule>& now,
    std::int64_t layers,
    std::int64_t step);

}  // namespace muster::agent
