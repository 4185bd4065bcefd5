// SPDX-License-Identifier: Apache-2.0
// A planner allocates when it is constructed and never again: this binary counts its allocations.
#include "tests/support/allocation_count.h"
#include "tests/unit/parallel/experts/plan/case.h"

#include <gtest/gtest.h>

namespace muster::parallel::testing {
namespace {

TEST(PlanAllocation, NothingIsAllocatedAfterConstruction) {
  FastRandom random{5};
  EpShape shape;
  shape.ranks = 8;
  shape.experts = 64;
  shape.top_k = 4;
  shape.tokens_max = 128;
  shape.slots = 2;  // overflow too
  EpBalance balance;
  balance.homes_max = 4;
  balance.capacity_max = 2;
  ASSERT_TRUE(check(shape, balance).ok());
  EpPlanner planner{shape, balance};
  EpPlan plan{shape, balance};
  for (int i = 0; i < 50; ++i) {
    std::vector<int> tokens(8);
    for (int& of_rank : tokens) {
      of_rank = random.below(129);
    }
    const Choices choices = draw_choices(shape, tokens, kRoutings[i % 5], random);
    const std::vector<std::int32_t> counts = count(shape, choices);
    const std::vector<double> speeds{1, 1, 1.3, 1, 0.8, 1, 0.5, 1};
    const long before = muster::test::allocations_of_this_thread();
    const bool sped = i % 2 == 0 || planner.set_speeds(speeds).ok();
    const bool planned = planner.plan(counts, plan).ok();
    const bool placed = planner.place(3, choices[3], plan).ok();
    const long after = muster::test::allocations_of_this_thread();
    ASSERT_TRUE(sped && planned && placed);
    ASSERT_EQ(after - before, 0) << "step " << i;
  }
}

}  // namespace
}  // namespace muster::parallel::testing
