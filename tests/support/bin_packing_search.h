// SPDX-License-Identifier: Apache-2.0
// The best possible distribution of a few costs over bins, as the reference of a heuristic.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <limits>
#include <vector>

namespace muster::test {

// Returns the smallest possible load of the fullest bin. Exhaustive: for about ten costs. Of
// several empty bins only the first is tried, because the others lead to the same loads.
[[nodiscard]] inline double smallest_fullest_bin(const std::vector<double>& costs, int bins) {
  std::vector<double> loads(static_cast<std::size_t>(bins), 0.0);
  double best = std::numeric_limits<double>::infinity();
  const std::function<void(std::size_t)> place = [&](std::size_t item) {
    if (item == costs.size()) {
      best = std::min(best, *std::max_element(loads.begin(), loads.end()));
      return;
    }
    for (double& load : loads) {
      const bool was_empty = load == 0;
      if (load + costs[item] < best) {
        load += costs[item];
        place(item + 1);
        load -= costs[item];
      }
      if (was_empty) {
        break;
      }
    }
  };
  place(0);
  return best;
}

}  // namespace muster::test
