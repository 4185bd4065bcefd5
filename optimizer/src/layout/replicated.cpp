// SPDX-License-Identifier: Apache-2.0
// Every rank holds everything (DDP). Each parameter has one primary rank for statistics and
// checkpoints, dealt out by size.
#include "optimizer/src/layout/bin_packing.h"
#include "optimizer/src/layout/build.h"

#include <numeric>

namespace muster::optimizer {
namespace {

std::vector<int> primaries(const LayoutInput& input) {
  std::vector<double> sizes;
  for (const std::size_t parameter : input.selected) {
    sizes.push_back(static_cast<double>(input.at(parameter).size));
  }
  return pack_longest_first(sizes, input.ranks);
}

void add_tasks(BufferPlan& plan, const LayoutInput& input) {
  for (const std::size_t index : input.selected) {
    const RoutedParameter& parameter = input.at(index);
    for (std::size_t matrix = 0; matrix < parameter.matrices; ++matrix) {
      MatrixTask task{index, matrix * parameter.unit, parameter.unit, {}, {}, false};
      for (int rank = 0; rank < plan.ranks; ++rank) {
        task.fragments.push_back({rank, 0, task.size});
        task.computing.push_back(rank);
      }
      plan.tasks.push_back(std::move(task));
    }
  }
}

}  // namespace

void plan_replicated(BufferPlan& plan, const LayoutInput& input) {
  place_in_order(plan, input);
  for (const PlacedRange& range : bucket_ranges(plan, input)) {
    Bucket bucket{range.begin, {}, range.end - range.begin, {}};
    for (std::size_t at = range.first; at < range.last; ++at) {
      bucket.parameters.push_back(plan.placed[at].parameter);
    }
    plan.buckets.push_back(std::move(bucket));
  }
  const std::vector<int> primary = primaries(input);
  for (std::size_t at = 0; at < plan.placed.size(); ++at) {
    const PlacedParameter& placed = plan.placed[at];
    const std::size_t size = input.at(placed.parameter).size;
    for (int rank = 0; rank < (input.detailed ? plan.ranks : 1); ++rank) {
      input.visit(rank, {placed.parameter, placed.begin, 0, size, primary[at] == rank});
    }
  }
  if (plan.key.matrices && input.detailed) {
    add_tasks(plan, input);
  }
}

}  // namespace muster::optimizer
