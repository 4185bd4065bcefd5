// SPDX-License-Identifier: Apache-2.0
// Decision whether and when to restart a failed run.
//
// Sans-I/O: time and the newest committed step come in as arguments. Not thread-safe.
//
// Invariants: (1) never more than `restarts_max` restarts within `restart_window`. (2) never more
// than `no_progress_restarts_max` restarts in a row without a newer committed step.
#pragma once

#include <muster/common/clock.h>
#include <muster/common/random.h>
#include <muster/launcher/options.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <string>

namespace muster::launcher {

struct RestartDecision {
  bool restart{false};
  std::chrono::nanoseconds delay{0};
  int exit_code{0};    // when not restarting
  std::string reason;  // when not restarting
};

class RestartPolicy {
 public:
  // `committed_step`: the newest at the start of the run, -1 when there is none.
  RestartPolicy(const LauncherOptions& options, std::int64_t committed_step);

  // After a failure or a requested rollback at `now`. A restart it allows is counted.
  [[nodiscard]] RestartDecision decide(MonotonicTime now, std::int64_t committed_step);

 private:
  [[nodiscard]] std::chrono::nanoseconds next_delay();

  // Constant after construction.
  int restarts_max_;
  std::chrono::nanoseconds window_;
  int no_progress_max_;
  std::chrono::nanoseconds backoff_first_;
  std::chrono::nanoseconds backoff_max_;

  Random jitter_;
  std::deque<MonotonicTime> restarts_;  // within the window, oldest first
  std::int64_t best_step_;
  int restarts_without_progress_{0};
};

}  // namespace muster::launcher
