// SPDX-License-Identifier: Apache-2.0
#include "launcher/src/restart_policy.h"

#include <algorithm>

namespace muster::launcher {

namespace {

// The wait is drawn from [1 - kJitter, 1 + kJitter] times its nominal length, so that jobs that
// fail together do not come back together.
constexpr double kJitter = 0.25;
constexpr int kDoublingsMax = 30;

}  // namespace

RestartPolicy::RestartPolicy(const LauncherOptions& options, std::int64_t committed_step)
    : restarts_max_(options.restarts_max),
      window_(options.restart_window),
      no_progress_max_(options.no_progress_restarts_max),
      backoff_first_(options.backoff_first),
      backoff_max_(options.backoff_max),
      jitter_(options.jitter_seed),
      best_step_(committed_step) {}

RestartDecision RestartPolicy::decide(MonotonicTime now, std::int64_t committed_step) {
  if (committed_step > best_step_) {
    best_step_ = committed_step;
    restarts_without_progress_ = 0;
  }
  if (restarts_without_progress_ >= no_progress_max_) {
    const std::string where =
        best_step_ < 0 ? "no checkpoint was ever committed"
                       : "the newest committed step is still " + std::to_string(best_step_);
    return {
        false,
        {},
        kExitNeverRestart,
        "no progress within " + std::to_string(no_progress_max_) + " restarts: " + where};
  }
  while (!restarts_.empty() && now - restarts_.front() >= window_) {
    restarts_.pop_front();
  }
  if (std::ssize(restarts_) >= restarts_max_) {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(window_).count();
    return {
        false,
        {},
        kExitFailed,
        "the budget of " + std::to_string(restarts_max_) + " restarts within " +
            std::to_string(seconds) + " s is used up"};
  }
  const auto delay = next_delay();
  ++restarts_without_progress_;
  restarts_.push_back(now);
  return {true, delay, 0, {}};
}

// The first restart after progress is immediate.
std::chrono::nanoseconds RestartPolicy::next_delay() {
  if (restarts_without_progress_ == 0) {
    return {};
  }
  const int doublings = std::min(restarts_without_progress_ - 1, kDoublingsMax);
  const double nominal = std::min(
      static_cast<double>(backoff_first_.count()) *
          static_cast<double>(std::uint64_t{1} << doublings),
      static_cast<double>(backoff_max_.count()));
  const double factor = 1.0 - kJitter + 2.0 * kJitter * jitter_.uniform();
  return std::chrono::nanoseconds{static_cast<std::int64_t>(nominal * factor)};
}

}  // namespace muster::launcher
