// SPDX-License-Identifier: Apache-2.0
#include "optimizer/src/layout/bin_packing.h"

#include "tests/support/bin_packing_search.h"

#include <muster/common/random.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace muster::optimizer {
namespace {

double fullest(const std::vector<double>& costs, const std::vector<int>& bin_of, int bins) {
  const auto loads = bin_loads(costs, bin_of, bins);
  return *std::max_element(loads.begin(), loads.end());
}

TEST(BinPacking, StaysWithinFourThirdsOfTheBestOverRandomCosts) {
  const std::uint64_t seed = 11;
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random{seed};
  for (int round = 0; round < 200; ++round) {
    const int bins = 2 + static_cast<int>(random.below(3));
    std::vector<double> costs(1 + random.below(9));
    for (double& cost : costs) {
      cost = static_cast<double>(1 + random.below(50));
    }
    const double limit = (4.0 / 3.0 - 1.0 / (3.0 * bins)) * test::smallest_fullest_bin(costs, bins);
    EXPECT_LE(fullest(costs, pack_longest_first(costs, bins), bins), limit * (1 + 1e-12));
  }
}

// Graham's worst case for two bins: 3 3 2 2 2 packs to 7, the best is 6, 7/6 = 4/3 - 1/6.
TEST(BinPacking, MeetsGrahamsWorstCaseExactly) {
  const std::vector<double> costs{3, 3, 2, 2, 2};
  EXPECT_EQ(fullest(costs, pack_longest_first(costs, 2), 2), 7.0);
  EXPECT_EQ(test::smallest_fullest_bin(costs, 2), 6.0);
}

TEST(BinPacking, LeavesBinsEmptyWhenThereAreFewerItems) {
  const std::vector<double> costs{5, 7};
  EXPECT_EQ(pack_longest_first(costs, 4), (std::vector<int>{1, 0}));
}

TEST(BinPacking, BreaksTiesByTheLowerIndexAndBin) {
  const std::vector<double> costs{1, 1, 1, 1, 1};
  EXPECT_EQ(pack_longest_first(costs, 3), (std::vector<int>{0, 1, 2, 0, 1}));
}

}  // namespace
}  // namespace muster::optimizer
