// SPDX-License-Identifier: Apache-2.0
// Elementwise rules: every bucket cut evenly, so that a reduce-scatter is as balanced as it can be.
#include "optimizer/src/layout/build.h"

#include <algorithm>

namespace muster::optimizer {

void plan_elementwise(BufferPlan& plan, const LayoutInput& input) {
  place_in_order(plan, input);
  const std::vector<PlacedRange> ranges = bucket_ranges(plan, input);
  // Pieces are visited in memory order, which is the reverse of the launch order.
  for (auto range = ranges.rbegin(); range != ranges.rend(); ++range) {
    const std::vector<std::size_t> cuts = even_cuts(plan, input, *range);
    visit_cut_shards(plan, input, *range, cuts);
    plan.buckets.push_back(cut_bucket(plan, input, *range, cuts));
  }
  std::reverse(plan.buckets.begin(), plan.buckets.end());
}

}  // namespace muster::optimizer
