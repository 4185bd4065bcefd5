// SPDX-License-Identifier: Apache-2.0
// Events of a verdict, for the reporting rank.
//
// Sans-I/O; not thread-safe. Gradient clips, QK-clips and spikes that ZClip clipped are reported at
// their onset, at most every kClipEventSteps steps each, with the number of such steps since the
// last event; every other kind is reported every time.
#pragma once

#include "agent/src/attention/state.h"
#include "agent/src/checkpoint/save_coordinator.h"

#include <muster/agent/verdict.h>
#include <muster/common/telemetry.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace muster::agent {

class StepEvents {
 public:
  static constexpr std::int64_t kClipEventSteps = 100;

  // `step`: the step that the verdict decided.
  [[nodiscard]] std::vector<Event> from_verdict(
      std::int64_t step, const Verdict& verdict, const ReducedLanes& lanes, double threshold);

 private:
  // Detects the onset of a condition that may last, and counts its steps.
  struct Onset {
    bool active{false};
    bool unreported{false};  // set in too soon after the last event; reported once that is past
    std::int64_t steps{0};   // since the last event
    std::int64_t last_step{-kClipEventSteps};

    // True if `step` needs an event.
    bool observe(std::int64_t step, bool now);
    std::int64_t take_steps(std::int64_t step);
  };

  void add_clip(std::int64_t step, const Verdict& verdict, std::vector<Event>& events);
  void add_spike(std::int64_t step, const Verdict& verdict, std::vector<Event>& events);

  Onset clips_;
  Onset qk_clips_;
  Onset spikes_;
};

// `resumed_generation`: of the checkpoint that was restored; nullopt at a fresh start.
[[nodiscard]] Event started_event(
    std::int64_t step, std::optional<std::int64_t> resumed_generation);
[[nodiscard]] Event event_of(const SaveOutcome& outcome, std::int64_t step);
// A layer attends differently than in the step before.
[[nodiscard]] Event mode_event(
    std::int64_t step, int layer, const AttentionMode& from, const AttentionMode& to);
// A resumed run continues under a different schedule.
[[nodiscard]] Event schedule_event(std::int64_t step, const ScheduleChange& change);
[[nodiscard]] Event ended_event(std::int64_t step, Ending ending, const Status& saved);

[[nodiscard]] const char* to_string(Ending ending);

}  // namespace muster::agent
