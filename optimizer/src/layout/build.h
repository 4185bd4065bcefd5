// SPDX-License-Identifier: Apache-2.0
// Functions shared by the planners of the layouts: buckets, legal cuts, shards of ranges, tasks and
// rounds.
#pragma once

#include "optimizer/src/layout/layout.h"

#include <functional>
#include <span>
#include <vector>

namespace muster::optimizer {

using ShardVisitor = std::function<void(int rank, const Shard& shard)>;

// One buffer to plan. `selected` holds its parameters in spec order, at least one.
struct LayoutInput {
  const Routing& routing;
  const OptimizerOptions& options;
  std::vector<std::size_t> selected;
  int ranks{1};
  // Off for a report of very many ranks: buckets stay without counts, and the tasks of
  // kReplicated, which every rank would appear in, are left out.
  bool detailed{true};
  // [parameters of the routing] Newton-Schulz flops of one matrix of each selected parameter.
  std::vector<double> flops;
  // Called for every shard, for each rank in memory order.
  const ShardVisitor& visit;

  [[nodiscard]] const RoutedParameter& at(std::size_t parameter) const {
    return routing.parameters[parameter];
  }
};

// matrix_flops of the selected parameters, computed once per shape.
[[nodiscard]] std::vector<double> flops_of_matrices(
    const Routing& routing, std::span<const std::size_t> selected, const MuonOptions& options);

// plan_buffer without its shards, which are passed to `visit`; see LayoutInput for `detailed`.
[[nodiscard]] BufferPlan build_buffer(
    const Routing& routing,
    const OptimizerOptions& options,
    const BufferKey& key,
    int ranks,
    bool detailed,
    const ShardVisitor& visit);

// Each fills buckets, placed, size and, for matrices, tasks; shards go to the visitor.
void plan_elementwise(BufferPlan& plan, const LayoutInput& input);
void plan_whole(BufferPlan& plan, const LayoutInput& input);
void plan_flat(BufferPlan& plan, const LayoutInput& input);
void plan_row_shards(BufferPlan& plan, const LayoutInput& input);
void plan_replicated(BufferPlan& plan, const LayoutInput& input);

[[nodiscard]] constexpr std::size_t aligned(std::size_t elements) {
  return (elements + kAlignmentElements - 1) / kAlignmentElements * kAlignmentElements;
}

// Whole parameters of together about options.bucket_bytes of fp32 gradient, in launch order: the
// bucket of the last parameters first; each bucket's parameters ascend.
[[nodiscard]] std::vector<std::vector<std::size_t>> make_buckets(
    const LayoutInput& input, std::span<const std::size_t> parameters);

// Places all selected parameters in spec order, each on an aligned start.
void place_in_order(BufferPlan& plan, const LayoutInput& input);

// The buffer's run [begin, end) that the parameters placed at [first, last) of plan.placed take.
struct PlacedRange {
  std::size_t first{0};
  std::size_t last{0};
  std::size_t begin{0};
  std::size_t end{0};
};

// The buckets of place_in_order's memory, in launch order; each is a range of plan.placed.
[[nodiscard]] std::vector<PlacedRange> bucket_ranges(
    const BufferPlan& plan, const LayoutInput& input);

// [ranks + 1] ascending positions that cut `range` as evenly as legal cuts allow (invariant 4):
// the ideal positions, each moved to the next legal one before it.
[[nodiscard]] std::vector<std::size_t> even_cuts(
    const BufferPlan& plan, const LayoutInput& input, const PlacedRange& range);

// Visits the shards of the parameters of `range` when rank r has [cuts[r], cuts[r + 1]).
void visit_cut_shards(
    const BufferPlan& plan,
    const LayoutInput& input,
    const PlacedRange& range,
    std::span<const std::size_t> cuts);

// The bucket of `range`, counts from `cuts` when the input is detailed.
[[nodiscard]] Bucket cut_bucket(
    const BufferPlan& plan,
    const LayoutInput& input,
    const PlacedRange& range,
    std::span<const std::size_t> cuts);

// Sets `moves` of every task, round_ends and newton_schulz_flops from fragments and computing.
void finish_tasks(BufferPlan& plan, const LayoutInput& input);

}  // namespace muster::optimizer
