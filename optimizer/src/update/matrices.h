// Muon's step over one region: momentum of every stored part, the parts brought together,
// orthogonalised, brought back and applied.
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

// What one rank does in one step, in order.
struct MatrixSchedule {
  std::vector<ExchangeRound> rounds;
  double bytes{0};  // handed to other ranks
  std::int64_t collectives{0};
};

// Rounds of the plan that move something, then this rank's own matrices, equal shapes together, in
// rounds of about `round_elements`.
[[nodiscard]] MatrixSchedule schedule_matrices(
    const RegionPlan& plan, const Routing& routing, int rank, std::size_t round_elements);

// Scratch memory and engine, shared by all regions of an optimizer.
class MatrixUpdate {
 public:
  MatrixUpdate(const Routing& routing, const OptimizerOptions& options);

  // Collective over the region's holders where the schedule exchanges anything. `shards` are the
  // region's, in the order of its pieces. An error is a lost peer.
  [[nodiscard]] Status run(
      const Region& region,
      const MatrixSchedule& schedule,
      std::span<Shard> shards,
      const StepDecision& decision,
      std::int64_t step,
      std::span<GroupUpdateStatistics> statistics,
      Deadline deadline);

  [[nodiscard]] std::int64_t newton_schulz_calls() const { return orthogonaliser_.calls(); }

 private:
  // What one step of one region works on.
  struct Step {
    const Region& region;
    std::map<std::size_t, Shard*> shard_of;  // by parameter
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

  // Without statistics for what another rank answers for.
  [[nodiscard]] kernels::UpdateStep step_for(
      const Step& step, const RoutedParameter& parameter, const Shard& shard) const;
  // Where element `begin` of a matrix that is worked out here lies.
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
