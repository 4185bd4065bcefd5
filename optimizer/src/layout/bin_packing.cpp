// SPDX-License-Identifier: Apache-2.0
#include "optimizer/src/layout/bin_packing.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>
#include <utility>

namespace muster::optimizer {

std::vector<int> pack_longest_first(
    std::span<const double> costs, int bins, std::span<const double> initial) {
  std::vector<std::size_t> order(costs.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return costs[a] > costs[b];
  });
  using Bin = std::pair<double, int>;  // load, index: the order of the pair breaks ties
  std::vector<Bin> loads(static_cast<std::size_t>(bins));
  for (int bin = 0; bin < bins; ++bin) {
    const auto at = static_cast<std::size_t>(bin);
    loads[at] = {initial.empty() ? 0.0 : initial[at], bin};
  }
  std::priority_queue<Bin, std::vector<Bin>, std::greater<>> lightest{
      std::greater<>{}, std::move(loads)};
  std::vector<int> bin_of(costs.size(), 0);
  for (const std::size_t item : order) {
    const auto [load, bin] = lightest.top();
    lightest.pop();
    bin_of[item] = bin;
    lightest.push({load + costs[item], bin});
  }
  return bin_of;
}

std::vector<double> bin_loads(
    std::span<const double> costs, std::span<const int> bin_of, int bins) {
  std::vector<double> loads(static_cast<std::size_t>(bins), 0.0);
  for (std::size_t item = 0; item < costs.size(); ++item) {
    loads[static_cast<std::size_t>(bin_of[item])] += costs[item];
  }
  return loads;
}

}  // namespace muster::optimizer
