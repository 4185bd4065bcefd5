#include "src/bin_packing.h"

#include <algorithm>
#include <numeric>

namespace muster::optimizer {

std::vector<int> pack_longest_first(std::span<const double> costs, int bins) {
  std::vector<std::size_t> order(costs.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return costs[a] > costs[b];
  });
  std::vector<double> loads(static_cast<std::size_t>(bins), 0.0);
  std::vector<int> bin_of(costs.size(), 0);
  for (const std::size_t item : order) {
    const auto lightest = std::min_element(loads.begin(), loads.end());
    bin_of[item] = static_cast<int>(lightest - loads.begin());
    *lightest += costs[item];
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
