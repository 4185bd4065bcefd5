// SPDX-License-Identifier: Apache-2.0
// Longest-processing-time bin packing.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace muster::optimizer {

// Bin of each item: items by falling cost (ties: lower index first) go to the least loaded bin
// (ties: lower bin). The fullest bin holds at most 4/3 - 1/(3 bins) of the best possible (Graham
// 1969). `initial` [bins] is the load the bins start with, zero if empty. O(items log(items +
// bins)).
[[nodiscard]] std::vector<int> pack_longest_first(
    std::span<const double> costs, int bins, std::span<const double> initial = {});

// Cost per bin.
[[nodiscard]] std::vector<double> bin_loads(
    std::span<const double> costs, std::span<const int> bin_of, int bins);

}  // namespace muster::optimizer
