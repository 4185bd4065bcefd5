// SPDX-License-Identifier: Apache-2.0
#include "optimizer/src/storage/exchange.h"
#include "tests/unit/optimizer/layout/model.h"

#include <algorithm>
#include <numeric>

namespace muster::optimizer {
namespace {

BufferPlan plan_row_shards(const Routing& routing, int ranks) {
  OptimizerOptions options;
  options.layout = Layout::kRowShards;
  return plan_buffer(routing, options, kMatrices, ranks);
}

std::vector<std::size_t> stored(const BufferPlan& plan) {
  std::vector<std::size_t> sizes;
  for (const auto& shards : plan.shards) {
    sizes.push_back(shards.empty() ? 0 : shards[0].size);
  }
  return sizes;
}

TEST(RowShards, EveryRankHasTheCeilingOfRowsOverRanksAndTheLastOnesTheRest) {
  // 18 rows over 8 ranks is the shape that once hung an all-to-all: 3 each, and nothing for two.
  const BufferPlan plan = plan_row_shards(routed({{18, 64}}, Rule::kMuon), 8);
  EXPECT_EQ(stored(plan), (std::vector<std::size_t>{192, 192, 192, 192, 192, 192, 0, 0}));
}

TEST(RowShards, AnEmptyShardStillHasAPlaceInEveryExchange) {
  const BufferPlan plan = plan_row_shards(routed({{18, 64}}, Rule::kMuon), 8);
  EXPECT_EQ(plan.buckets.at(0).counts.size(), 8U);
  EXPECT_EQ(plan.buckets.at(0).counts[7], 0U);
  // A rank that stays out of an all-to-all leaves the others waiting for it.
  const int owner = plan.tasks.at(0).computing.front();
  for (int rank = 0; rank < 8; ++rank) {
    const ExchangeRound round = plan_exchange(plan, 0, plan.tasks.size(), rank);
    for (const Leg* leg : {&round.directions, &round.results}) {
      EXPECT_TRUE(leg->runs) << rank;
      EXPECT_EQ(leg->send_counts.size(), 8U) << rank;
      EXPECT_EQ(leg->receive_counts.size(), 8U) << rank;
    }
    const std::size_t rows = rank < 6 && rank != owner ? 3 : 0;
    EXPECT_EQ(round.directions.send_size, rows * 64) << rank;
    EXPECT_EQ(round.results.receive_size, rows * 64) << rank;
  }
}

TEST(RowShards, EightBitStatesMoveTheCutToABlockBoundary) {
  // 100 rows of 48: a block of 256 elements and a row end together every 16 rows.
  const BufferPlan plan =
      plan_row_shards(routed({{100, 48}}, Rule::kMuon, StateType::kInt8Block), 3);
  EXPECT_EQ(stored(plan), (std::vector<std::size_t>{48 * 48, 48 * 48, 4 * 48}));
}

TEST(RowShards, AStackIsDealtOutByWholeMatrices) {
  const BufferPlan plan = plan_row_shards(routed({{5, 6, 7}}, Rule::kMuon), 3);
  EXPECT_EQ(stored(plan), (std::vector<std::size_t>{84, 84, 42}));
  EXPECT_TRUE(std::none_of(
      plan.tasks.begin(), plan.tasks.end(), [](const MatrixTask& task) { return task.moves; }));
}

TEST(RowShards, OwnersAreDealtOutEvenlyByWork) {
  const BufferPlan plan = plan_row_shards(routed(std::vector<Shape>(12, {32, 32}), Rule::kMuon), 4);
  for (const double flops : plan.newton_schulz_flops) {
    EXPECT_EQ(flops, plan.newton_schulz_flops[0]);
  }
  EXPECT_TRUE(std::all_of(plan.tasks.begin(), plan.tasks.end(), [](const MatrixTask& task) {
    return task.moves && task.computing.size() == 1;
  }));
}

TEST(RowShards, AMatrixThatLiesOnOneRankStaysThere) {
  const BufferPlan plan = plan_row_shards(routed({{1, 512}, {64, 64}}, Rule::kMuon), 4);
  EXPECT_EQ(plan.tasks[0].computing, std::vector<int>{0});
  EXPECT_FALSE(plan.tasks[0].moves);
}

TEST(RowShards, EveryParameterIsASegmentForItsShardsAreNeighboursOnlyInItself) {
  const BufferPlan plan = plan_row_shards(routed({{8, 8}, {8, 8}, {4, 8, 8}}, Rule::kMuon), 2);
  ASSERT_EQ(plan.buckets.size(), 3U);
  EXPECT_EQ(plan.buckets[0].parameters, std::vector<std::size_t>{2});
}

TEST(ReplicatedLayout, EveryRankHasEverythingAndOneAnswersForIt) {
  OptimizerOptions options;
  options.layout = Layout::kReplicated;
  const Routing routing = routed({{64, 64}, {32, 64}, {32, 64}}, Rule::kMuon);
  const BufferPlan plan = plan_buffer(routing, options, kMatrices, 2);
  std::vector<std::size_t> answered(2, 0);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    ASSERT_EQ(plan.shards[rank].size(), 3U);
    for (const Shard& shard : plan.shards[rank]) {
      answered[rank] += shard.primary ? shard.size : 0;
    }
  }
  EXPECT_EQ(answered, std::vector<std::size_t>(2, 4096));
  EXPECT_EQ(plan.tasks[0].computing, (std::vector<int>{0, 1}));
  EXPECT_EQ(plan.newton_schulz_flops[0], plan.newton_schulz_flops[1]);
}

}  // namespace
}  // namespace muster::optimizer
