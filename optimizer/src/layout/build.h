// What the planners of the layouts share: buckets, legal cuts, pieces of ranges, tasks and rounds.
#pragma once

#include "optimizer/src/layout/layout.h"

#include <functional>
#include <span>
#include <vector>

namespace muster::optimizer {

using PieceVisitor = std::function<void(int rank, const Piece& piece)>;

// One region to plan. `selected`: its parameters in spec order, at least one.
struct LayoutInput {
  const Routing& routing;
  const OptimizerOptions& options;
  std::vector<std::size_t> selected;
  int ranks{1};
  // Off for a report of very many ranks: segments stay without counts, and the tasks of
  // kReplicated, which every rank would appear in, are left out.
  bool detailed{true};
  // [parameters of the routing] Newton-Schulz flops of one matrix of each selected parameter.
  std::vector<double> flops;
  // Called for every piece, for each rank in memory order.
  const PieceVisitor& visit;

  [[nodiscard]] const RoutedParameter& at(std::size_t parameter) const {
    return routing.parameters[parameter];
  }
};

// matrix_flops of the selected parameters, each shape worked out once.
[[nodiscard]] std::vector<double> flops_of_matrices(
    const Routing& routing, std::span<const std::size_t> selected, const MuonOptions& options);

// plan_region without its pieces, which `visit` gets; see LayoutInput for `detailed`.
[[nodiscard]] RegionPlan build_region(
    const Routing& routing,
    const OptimizerOptions& options,
    const RegionKey& key,
    int ranks,
    bool detailed,
    const PieceVisitor& visit);

// Each fills segments, placed, size and, for matrices, tasks; pieces go to the visitor.
void plan_elementwise(RegionPlan& plan, const LayoutInput& input);
void plan_whole(RegionPlan& plan, const LayoutInput& input);
void plan_flat(RegionPlan& plan, const LayoutInput& input);
void plan_row_shards(RegionPlan& plan, const LayoutInput& input);
void plan_replicated(RegionPlan& plan, const LayoutInput& input);

[[nodiscard]] constexpr std::size_t aligned(std::size_t elements) {
  return (elements + kAlignmentElements - 1) / kAlignmentElements * kAlignmentElements;
}

// Whole parameters of together about options.bucket_bytes of fp32 gradient, in launch order: the
// bucket of the last parameters first; each bucket's parameters ascend.
[[nodiscard]] std::vector<std::vector<std::size_t>> make_buckets(
    const LayoutInput& input, std::span<const std::size_t> parameters);

// Places all selected parameters in spec order, each on an aligned start.
void place_in_order(RegionPlan& plan, const LayoutInput& input);

// The region's run [begin, end) that the parameters placed at [first, last) of plan.placed take.
struct PlacedRange {
  std::size_t first{0};
  std::size_t last{0};
  std::size_t begin{0};
  std::size_t end{0};
};

// The buckets of place_in_order's memory, in launch order; each is a range of plan.placed.
[[nodiscard]] std::vector<PlacedRange> bucket_ranges(
    const RegionPlan& plan, const LayoutInput& input);

// [ranks + 1] ascending positions that cut `range` as evenly as legal cuts allow (invariant 4):
// the ideal positions, each moved to the next legal one before it.
[[nodiscard]] std::vector<std::size_t> even_cuts(
    const RegionPlan& plan, const LayoutInput& input, const PlacedRange& range);

// Visits what ranks store of the parameters of `range` when rank r has [cuts[r], cuts[r + 1]).
void visit_cut_pieces(
    const RegionPlan& plan,
    const LayoutInput& input,
    const PlacedRange& range,
    std::span<const std::size_t> cuts);

// The segment of `range`, counts from `cuts` when the input is detailed.
[[nodiscard]] Segment cut_segment(
    const RegionPlan& plan,
    const LayoutInput& input,
    const PlacedRange& range,
    std::span<const std::size_t> cuts);

// Sets `moves` of every task, round_ends and newton_schulz_flops from fragments and computing.
void finish_tasks(RegionPlan& plan, const LayoutInput& input);

}  // namespace muster::optimizer
