// SPDX-License-Identifier: Apache-2.0
// Capacities of ranks that are not equally fast.
#include "tests/unit/parallel/experts/plan/case.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

namespace muster::parallel::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

EpShape shape_of(int ranks, int experts, std::int64_t tokens_max) {
  EpShape shape;
  shape.ranks = ranks;
  shape.experts = experts;
  shape.top_k = 1;
  shape.tokens_max = tokens_max;
  return shape;
}

std::vector<std::int64_t> loads(const EpPlan& plan) {
  std::vector<std::int64_t> result;
  for (int rank = 0; rank < plan.shape.ranks; ++rank) {
    const auto first = plan.rows.begin() + std::ptrdiff_t{rank} * plan.shape.experts;
    result.push_back(std::accumulate(first, first + plan.shape.experts, std::int64_t{0}));
  }
  return result;
}

TEST(PlanCapacities, AreApportionedByLargestRemainders) {
  EpBalance balance;
  balance.speeds = {1, 0.5, 0.25};  // of 10 rows: 5.71, 2.86, 1.43
  const EpPlan plan = plan_of(shape_of(3, 3, 4), balance, {{0, 0, 1, 1}, {0, 1, 2, 2}, {0, 1}});
  EXPECT_THAT(loads(plan), ElementsAre(6, 3, 1));
  EXPECT_EQ(check_plan(plan, balance).to_string(), "ok");
}

TEST(PlanCapacities, FollowSpeedsFromTheNextPlanOn) {
  const EpShape shape = shape_of(2, 4, 8);
  EpBalance balance;
  balance.capacity_max = 1.5;
  EpPlanner planner{shape, balance};
  EpPlan plan{shape, balance};
  EXPECT_EQ(plan.receive_rows, 13);  // 12, and what weights are rounded by
  const std::vector<std::int32_t> counts{2, 2, 2, 2, 2, 2, 2, 2};
  ASSERT_TRUE(planner.plan(counts, plan).ok());
  EXPECT_THAT(loads(plan), ElementsAre(8, 8));
  ASSERT_TRUE(planner.set_speeds(std::vector<double>{3, 1}).ok());
  ASSERT_TRUE(planner.plan(counts, plan).ok());
  EXPECT_THAT(loads(plan), ElementsAre(12, 4));
  balance.speeds = {3, 1};
  EXPECT_EQ(check_plan(plan, balance).to_string(), "ok");
  ASSERT_TRUE(planner.set_speeds({}).ok());
  ASSERT_TRUE(planner.plan(counts, plan).ok());
  EXPECT_THAT(loads(plan), ElementsAre(8, 8));
}

TEST(PlanCapacities, SpeedsThatBuffersHaveNoRoomForChangeNothing) {
  const EpShape shape = shape_of(2, 4, 8);
  EpBalance balance;
  balance.capacity_max = 1.25;
  EpPlanner planner{shape, balance};
  EpPlan plan{shape, balance};
  const Status status = planner.set_speeds(std::vector<double>{3, 1});
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("up to 13 rows and buffers have room for 11"));
  EXPECT_FALSE(planner.set_speeds(std::vector<double>{1, 1, 1}).ok());
  ASSERT_TRUE(planner.plan(std::vector<std::int32_t>{2, 2, 2, 2, 2, 2, 2, 2}, plan).ok());
  EXPECT_THAT(loads(plan), ElementsAre(8, 8));
}

// Rank 0 has nothing to do at home and is as fast as all others, whose own rows are too few for one
// of them to fill it.
TEST(PlanCapacities, ASecondHomeComesInOnlyWhereItIsAllowed) {
  const EpShape shape = shape_of(4, 4, 6);
  EpBalance balance;
  balance.speeds = {3, 1, 1, 1};
  const Choices choices{{1, 1, 2, 2, 3, 3}, {1, 1, 2, 2, 3, 3}, {1, 1, 2, 2, 3, 3}, {}};
  EpPlanner strict{shape, balance};
  EpPlan refused{shape, balance};
  const Status status = strict.plan(count(shape, choices), refused);
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("rank 0 has room for 9 more rows"));
  EXPECT_EQ(loads(refused), std::vector<std::int64_t>(4, 0)) << "written in spite of the refusal";

  balance.homes_max = 3;
  const EpPlan plan = plan_of(shape, balance, choices, 1);
  EXPECT_THAT(loads(plan), ElementsAre(9, 3, 3, 3));
  EXPECT_EQ(check_plan(plan, balance).to_string(), "ok");
  EXPECT_GT(plan.statistics.overflow_groups, 0);  // one slot, two or more remote experts

  EpShape compact = shape;
  compact.compact = true;
  EXPECT_THAT(
      check(compact, balance).message(),
      HasSubstr("slots must be at least 3 in the compact layout"));
  compact.slots = 3;
  const EpPlan slotted = plan_of(compact, balance, choices, 1);
  EXPECT_EQ(slotted.statistics.overflow_groups, 0);
  EXPECT_EQ(check_plan(slotted, balance).to_string(), "ok");
}

TEST(PlanCapacities, ARankWithoutSpeedComputesNothing) {
  const EpShape shape = shape_of(3, 6, 4);
  EpBalance balance;
  balance.speeds = {1, 0, 1};
  balance.homes_max = 2;
  const EpPlan plan = plan_of(shape, balance, {{2, 3, 2, 3}, {2, 3, 0, 5}, {2, 3, 4, 1}});
  EXPECT_THAT(loads(plan), ElementsAre(6, 0, 6));
  EXPECT_EQ(check_plan(plan, balance).to_string(), "ok");
}

}  // namespace
}  // namespace muster::parallel::testing
