// SPDX-License-Identifier: Apache-2.0
// Which rows a rank holds, and what its queries see of another's keys.
#include <muster/parallel/context.h>

#include <gtest/gtest.h>

#include <numeric>
#include <tuple>

namespace muster::parallel {
namespace {

const std::vector<std::int64_t> kPack{0, 37, 37, 38, 41, 141};

TEST(ContextPlan, ShardsTileThePack) {
  for (const int ranks : {1, 2, 3, 4, 8}) {
    for (const ShardOrder order : {ShardOrder::kContiguous, ShardOrder::kZigzag}) {
      const auto plan = ContextPlan::create(kPack, ranks, order);
      ASSERT_TRUE(plan.ok());
      std::vector<int> held(141, 0);
      for (int rank = 0; rank < ranks; ++rank) {
        const auto rows = plan->pack_rows(rank);
        EXPECT_EQ(static_cast<std::int64_t>(rows.size()), plan->row_count(rank));
        for (const std::int64_t row : rows) {
          ++held[static_cast<std::size_t>(row)];
        }
      }
      EXPECT_EQ(held, std::vector<int>(141, 1)) << ranks;
    }
  }
}

TEST(ContextPlan, ZigzagPairsAnEarlyChunkWithALateOne) {
  const auto plan = ContextPlan::create(std::vector<std::int64_t>{0, 16}, 4, ShardOrder::kZigzag);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->pack_rows(0), (std::vector<std::int64_t>{0, 1, 14, 15}));
  EXPECT_EQ(plan->pack_rows(3), (std::vector<std::int64_t>{6, 7, 8, 9}));
}

TEST(ContextPlan, ZigzagEvensOutWhatQueriesSeeAndContiguousDoesNot) {
  const std::vector<std::int64_t> cu{0, 800};
  for (const ShardOrder order : {ShardOrder::kContiguous, ShardOrder::kZigzag}) {
    const auto plan = ContextPlan::create(cu, 4, order);
    ASSERT_TRUE(plan.ok());
    std::vector<std::int64_t> seen;
    for (int rank = 0; rank < 4; ++rank) {
      const auto rows = plan->pack_rows(rank);
      seen.push_back(std::accumulate(rows.begin(), rows.end(), std::int64_t{0}));
    }
    EXPECT_EQ(seen[0] == seen[3], order == ShardOrder::kZigzag);
  }
}

TEST(ContextPlan, SegmentsSeeWhatLiesBeforeThemAndHalfOfThemselves) {
  const ContextSegment early{0, 0, 8, 0};
  const ContextSegment late{0, 8, 16, 0};
  const ContextSegment other{1, 0, 8, 0};
  EXPECT_EQ(context_relation(late, early, true), ContextRelation::kAll);
  EXPECT_EQ(context_relation(early, early, true), ContextRelation::kDiagonal);
  EXPECT_EQ(context_relation(early, late, true), ContextRelation::kNothing);
  EXPECT_EQ(context_relation(early, late, false), ContextRelation::kAll);
  EXPECT_EQ(context_relation(late, other, false), ContextRelation::kNothing);
}

TEST(ContextPlan, BadOffsetsAndRanksAreNamed) {
  const auto message = [](std::vector<std::int64_t> cu, int ranks) {
    return ContextPlan::create(cu, ranks, ShardOrder::kZigzag).status().to_string();
  };
  EXPECT_NE(message({0, 5, 3}, 2).find("cu[2] is 3, less than cu[1] = 5"), std::string::npos);
  EXPECT_NE(message({1, 5}, 2).find("cu must begin with 0"), std::string::npos);
  EXPECT_NE(message({0, 5}, 0).find("ranks must be at least 1, got 0"), std::string::npos);
}

}  // namespace
}  // namespace muster::parallel
