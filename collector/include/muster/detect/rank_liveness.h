// SPDX-License-Identifier: Apache-2.0
// Liveness of ranks, judged from message arrivals and step numbers.
//
// A pure function of arrival times on the receiver's monotonic clock and of step numbers: clocks of
// two machines are never compared. Two problems are found, each once per occurrence:
//   "rank_lost"    a rank sent nothing for longer than its allowance, 4 times its usual interval
//                  within [silence_min, silence_max];
//   "no_progress"  messages arrive but the highest step of the job has not moved for 3 times the
//                  usual step time, at least progress_min. Synchronous training stops as a whole,
//                  so this is found for the job; the ranks that lag are named.
//
// A value; copy it to fork a simulation. Not thread-safe.
#pragma once

#include <muster/common/clock.h>
#include <muster/detect/detector.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace muster::detect {

struct LivenessOptions {
  std::chrono::nanoseconds silence_min{std::chrono::seconds{10}};
  std::chrono::nanoseconds silence_max{std::chrono::minutes{2}};
  double silence_intervals{4.0};
  std::chrono::nanoseconds progress_min{std::chrono::seconds{60}};
  double progress_intervals{3.0};
};

class RankLiveness {
 public:
  explicit RankLiveness(LivenessOptions options) : options_(options) {}

  // Records a message that arrived at `at` from a rank that has finished `step`, or -1 before its
  // first. The first message of a higher generation forgets all ranks of the older one; messages of
  // older ones are ignored.
  void observe(std::int64_t generation, std::int32_t rank, std::int64_t step, MonotonicTime at);

  // Stops watching a rank that sent a Goodbye.
  void forget(std::int64_t generation, std::int32_t rank);

  // Returns the losses since the last call. A second call with the same `now` finds nothing new.
  [[nodiscard]] std::vector<Finding> judge(MonotonicTime now);

 private:
  struct RankState {
    MonotonicTime last_received_at;
    double interval_s{0};  // Smoothed time between messages; 0 after the first.
    std::int64_t step{-1};
    bool lost{false};
  };

  [[nodiscard]] std::chrono::nanoseconds allowance(const RankState& state) const;
  void judge_progress(MonotonicTime now, std::vector<Finding>& findings);

  LivenessOptions options_;
  std::optional<std::int64_t> generation_;
  std::map<std::int32_t, RankState> ranks_;
  std::int64_t step_{-1};      // Highest of all ranks.
  MonotonicTime step_at_;      // When it was reached.
  double step_interval_s_{0};  // Smoothed; 0 while unknown.
  bool stalled_{false};
};

}  // namespace muster::detect
