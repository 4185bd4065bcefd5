// SPDX-License-Identifier: Apache-2.0
// Exclusive time per phase of one step: while an inner phase runs, the outer one is paused.
//
// Sans-I/O: time is an argument. Not thread-safe; the training thread owns it. No
// allocation.
#pragma once

#include <muster/agent/agent.h>

#include <array>
#include <chrono>
#include <cstddef>

namespace muster::agent {

class PhaseStopwatch {
 public:
  using Times = std::array<std::chrono::nanoseconds, kPhaseCount>;

  // Begins a step and closes phases that a broken step left open.
  void restart(MonotonicTime now);

  void enter(Phase phase, MonotonicTime now);

  // Does nothing without an open phase. Phases nested deeper than kDepthMax count towards the phase
  // at kDepthMax.
  void leave(MonotonicTime now);

  // All phases up to `now`; kOther is the time outside any phase, so that the sum is the step.
  [[nodiscard]] Times times(MonotonicTime now) const;

  [[nodiscard]] std::chrono::nanoseconds elapsed(MonotonicTime now) const { return now - start_; }

 private:
  static constexpr std::size_t kDepthMax = 16;

  [[nodiscard]] Phase running() const;
  void charge(MonotonicTime now);

  MonotonicTime start_;
  MonotonicTime charged_until_;
  Times times_{};
  std::array<Phase, kDepthMax> open_{};
  std::size_t depth_{0};
};

}  // namespace muster::agent
