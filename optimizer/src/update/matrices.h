// SPDX-License-Identifier: Apache-2.0
// Muon's step over one buffer: updates the momentum of every shard, collects the matrices,
// orthogonalises them, returns the results and applies them.
#pragma once

#include "optimizer/src/storage/exchange.h"
#include "optimizer/src/storage/param_buffer.h"
#include "optimizer/src/storage/shard.h"
#include "optimizer/src/update/blocks.h"

#include <muster/optimizer/optimizer.h>

#include <cstddef>
#include <map>
#include <span>
#include <vector>

namespace muster::optimizer {

// Work of one rank in one step, in order.
struct MatrixSchedule {
  std::vector<ExchangeRound> rounds;
  double bytes{0};  // sent to other ranks
  std::int64_t collectives{0};
};

// Rounds of the plan that move something, then this rank's own matrices, equal shapes together, in
// rounds of about `round_elements`.
[[nodiscard]] MatrixSchedule schedule_matrices(
    const BufferPlan& plan, const Routing& routing, int rank, std::size_t round_elements);

// Scratch memory and engine, shared by all buffers of an optimizer.
class MatrixUpdate {
 public:
  MatrixUpdate(const Routing& routing, const OptimizerOptions& options);

  // Collective over the buffer's holders where the schedule exchanges anything. `shards` are the
  // buffer's, in the order of its plan. An error means a lost peer.
  [[nodiscard]] Status run(
      const ParamBuffer& buffer,
      const MatrixSchedule& schedule,
      std::span<ShardState> shards,
      const StepDecision& decision,
      std::int64_t step,
      std::span<GroupUpdateStatistics> statistics,
      Deadline deadline);

  [[nodiscard]] std::int64_t newton_schulz_calls() const { return orthogonaliser_.calls(); }

 private:
  // Arguments of one step on one buffer.
  struct Step {
    const ParamBuffer& buffer;
    std::map<std::size_t, ShardState*> shard_of;  // by parameter
    const StepDecision& decision;
    std::int64_t step;
    std::span<GroupUpdateStatistics> statistics;
    Deadline deadline;
    int rank;
  };

  [[nodiscard]] Status run_round(const Step& step, const ExchangeRound& round);
  void place(const Step& step, const ExchangeRound& round);
  void fill_directions(const Step& step, const ExchangeRound& round);
  void fill_results(const Step& step, const ExchangeRound& round);
  void apply(const Step& step, const ExchangeRound& round);
  void apply_fragment(
      const Step& step, const MatrixTask& task, const Fragment& fragment, const float* orthogonal);

  // Without statistics if another rank is primary for the shard.
  [[nodiscard]] kernels::UpdateStep step_for(
      const Step& step, const RoutedParameter& parameter, const ShardState& shard) const;
  // Address of element `begin` of a matrix that this rank computes.
  [[nodiscard]] float* in_work(std::size_t task, std::size_t begin);

  const Routing* routing_;
  const OptimizerOptions* options_;
  Orthogonaliser orthogonaliser_;
  ExchangeBuffers buffers_;
  std::vector<float> work_;
  std::vector<WorkMatrix> matrices_;                // of the current round
  std::map<std::size_t, std::size_t> work_offset_;  // by task
};

}  // namespace muster::optimizer
