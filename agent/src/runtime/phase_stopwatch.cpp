// SPDX-License-Identifier: Apache-2.0
#include "agent/src/runtime/phase_stopwatch.h"

#include <algorithm>

namespace muster::agent {

const char* to_string(Phase phase) {
  switch (phase) {
    case Phase::kData:
      return "data";
    case Phase::kForward:
      return "forward";
    case Phase::kBackward:
      return "backward";
    case Phase::kExpertComm:
      return "expert_comm";
    case Phase::kReduce:
      return "reduce";
    case Phase::kVerdict:
      return "verdict";
    case Phase::kOptimizer:
      return "optimizer";
    case Phase::kGather:
      return "gather";
    case Phase::kCheckpoint:
      return "checkpoint";
    case Phase::kOther:
      return "other";
  }
  return "unknown";
}

void PhaseStopwatch::restart(MonotonicTime now) {
  start_ = now;
  charged_until_ = now;
  times_ = {};
  depth_ = 0;
}

void PhaseStopwatch::enter(Phase phase, MonotonicTime now) {
  charge(now);
  if (depth_ < kDepthMax) {
    open_[depth_] = phase;
  }
  ++depth_;
}

void PhaseStopwatch::leave(MonotonicTime now) {
  if (depth_ > 0) {
    charge(now);
    --depth_;
  }
}

PhaseStopwatch::Times PhaseStopwatch::times(MonotonicTime now) const {
  Times out = times_;
  out[static_cast<std::size_t>(running())] += now - charged_until_;
  return out;
}

Phase PhaseStopwatch::running() const {
  return depth_ == 0 ? Phase::kOther : open_[std::min(depth_, kDepthMax) - 1];
}

void PhaseStopwatch::charge(MonotonicTime now) {
  times_[static_cast<std::size_t>(running())] += now - charged_until_;
  charged_until_ = now;
}

}  // namespace muster::agent
