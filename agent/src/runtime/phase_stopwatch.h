// Exclusive time per phase of one step: while an inner phase runs, the outer one stands still.
//
// Sans-I/O: time comes in as an argument. Not thread-safe; the training thread owns it. No
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

  // Begins a step; phases left open by a broken step are closed.
  void restart(MonotonicTime now);

  void enter(Phase phase, MonotonicTime now);

  // Without an open phase it does nothing. Phases nested deeper than kDepthMax count to the phase
  // at kDepthMax.
  void leave(MonotonicTime now);

  // All phases up to `now`; kOther holds what no phase claimed, so that the sum is the step.
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
