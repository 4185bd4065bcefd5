// SPDX-License-Identifier: Apache-2.0
// The results of one step: as the training thread has them, and the copy that metrics are computed
// from on the I/O thread.
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

// Valid until the next step begins.
struct StepOutcome {
  const ReducedLanes& lanes;
  const Verdict& verdict;
  std::span<const AttentionMode> modes;  // [attention layers]; empty until the model sets them
  const EpTimes& ep;
  double learning_rate{0};
  double local_loss{0};        // NaN without tokens
  bool update_applied{false};  // as this rank's optimizer counts
};

struct StepFacts {
  ReducedLanes lanes{};
  Verdict verdict{};
  double learning_rate{0};
  double previous_learning_rate{0};  // of the update that lanes.update describes
  double local_loss{0};              // NaN without tokens
  bool update_applied{false};        // as this rank's optimizer counts
  std::chrono::nanoseconds step_time{0};
  PhaseStopwatch::Times phases{};
  std::vector<AttentionMode> modes{};  // [attention layers]; empty until the model sets them
  EpTimes ep{};

  // What metrics of a rank and of the job are computed from. Neither allocates if the storage has
  // the shape of the model (shaped_sample), unless the verdict has commands, a reason or QK-clip
  // factors.
  void copy_rank(const StepOutcome& outcome);
  void copy_job(const StepOutcome& outcome);
};

// A slot of the ring between the two threads.
struct StepSample {
  std::int64_t step{0};
  std::int64_t wall_unix_ns{0};
  std::int64_t monotonic_ns{0};
  double telemetry_seconds{0};  // on the training thread
  StepFacts facts;
};

// A sample with storage for the statistics of a rank of the model, and of the job if the rank
// reports that too.
[[nodiscard]] StepSample shaped_sample(const LaneLayout& layout, const ModelInfo& model, bool job);

}  // namespace muster::agent
