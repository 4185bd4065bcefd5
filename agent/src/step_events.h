// Which events a verdict is worth, for the one rank that speaks for the job.
//
// Sans-I/O; not thread-safe. Gradient clips are told when clipping sets in, at most every
// kClipEventSteps steps, with the number of clipped steps since; every other kind every time.
#pragma once

#include "src/saver.h"

#include <muster/agent/verdict.h>
#include <muster/common/telemetry.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace muster::agent {

class StepEvents {
 public:
  static constexpr std::int64_t kClipEventSteps = 100;

  // `step` is the step that the verdict decided.
  [[nodiscard]] std::vector<Event> from_verdict(
      std::int64_t step, const Verdict& verdict, const ReducedLanes& lanes, double threshold);

 private:
  void add_clip(std::int64_t step, const Verdict& verdict, std::vector<Event>& events);

  bool clipping_{false};
  std::int64_t clipped_steps_{0};  // Since the last clip event.
  std::int64_t last_clip_step_{-kClipEventSteps};
};

// `resumed_generation`: of the checkpoint that the run goes on from; nullopt at a fresh start.
[[nodiscard]] Event started_event(
    std::int64_t step, std::optional<std::int64_t> resumed_generation);
[[nodiscard]] Event event_of(const SaveOutcome& outcome, std::int64_t step);
[[nodiscard]] Event ended_event(std::int64_t step, Ending ending, const Status& saved);

[[nodiscard]] const char* to_string(Ending ending);

}  // namespace muster::agent
