// SPDX-License-Identifier: Apache-2.0
// The results of one step that metrics are computed from.
#pragma once

#include "agent/src/runtime/phase_stopwatch.h"

#include <muster/agent/agent.h>

#include <chrono>
#include <span>
#include <vector>

namespace muster::agent {

// Cost of expert parallelism on this rank in a step, over layers and passes.
struct EpTimes {
  std::vector<std::chrono::nanoseconds> waits;  // [ranks of the expert group]
  std::chrono::nanoseconds plan{0};
  std::chrono::nanoseconds move{0};
  bool any{false};  // a pass was recorded

  void add(const parallel::EpEvent& event);
  // Keeps the storage.
  void clear();
};

struct StepFacts {
  const ReducedLanes& lanes;
  const Verdict& verdict;
  double learning_rate{0};
  double previous_learning_rate{0};  // of the update that lanes.update describes
  double local_loss{0};              // NaN without tokens
  bool update_applied{false};        // as this rank's optimizer counts
  std::chrono::nanoseconds step_time{0};
  PhaseStopwatch::Times phases{};
  std::span<const AttentionMode> modes{};  // [attention layers]; empty until the model sets them
  const EpTimes* ep{nullptr};              // null if no pass was recorded
};

}  // namespace muster::agent
