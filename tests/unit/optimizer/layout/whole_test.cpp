// SPDX-License-Identifier: Apache-2.0
#include "tests/support/bin_packing_search.h"
#include "tests/unit/optimizer/layout/model.h"

#include <muster/common/random.h>

#include <algorithm>

namespace muster::optimizer {
namespace {

BufferPlan plan_whole(const Routing& routing, int ranks, std::size_t bucket_bytes = 0) {
  OptimizerOptions options;
  options.bucket_bytes = bucket_bytes;
  return plan_buffer(routing, options, kMatrices, ranks);
}

double fullest(const BufferPlan& plan) {
  return *std::max_element(plan.newton_schulz_flops.begin(), plan.newton_schulz_flops.end());
}

TEST(WholeMatrices, NothingIsCutAndNothingMoves) {
  const Routing routing =
      routed({{4, 6}, {6, 4}, {5, 3, 7}, {8, 8}, {3, 2, 2}, {11, 4, 4}}, Rule::kMuon);
  for (const int ranks : {1, 2, 3, 5, 7, 16, 61}) {
    for (const MatrixTask& task : plan_whole(routing, ranks).tasks) {
      EXPECT_EQ(task.fragments.size(), 1U);
      EXPECT_FALSE(task.moves);
    }
  }
}

TEST(WholeMatrices, LoadIsWithinGrahamsBoundOfTheBestPossible) {
  const std::uint64_t seed = 5;
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random{seed};
  for (int round = 0; round < 100; ++round) {
    std::vector<Shape> shapes(1 + random.below(4));
    for (Shape& shape : shapes) {
      shape = {
          static_cast<std::int64_t>(1 + random.below(3)),
          static_cast<std::int64_t>(1 + random.below(64)),
          static_cast<std::int64_t>(1 + random.below(64))};
    }
    const Routing routing = routed(shapes, Rule::kMuon);
    std::vector<double> costs;
    for (const RoutedParameter& parameter : routing.parameters) {
      costs.insert(costs.end(), parameter.matrices, matrix_flops(parameter, MuonOptions{}));
    }
    const int ranks = 1 + static_cast<int>(random.below(4));
    const double bound = 4.0 / 3.0 - 1.0 / (3.0 * ranks);
    // Whole stacks are kept within 1.1 of the lower bound, which may exceed 4/3 - 1/3 for 1 rank.
    EXPECT_LE(
        fullest(plan_whole(routing, ranks)),
        std::max(bound, kWholeStackSlack) * test::smallest_fullest_bin(costs, ranks) * (1 + 1e-12));
  }
}

TEST(WholeMatrices, CountsTheBlocksOfAMatrixAndNotTheWhole) {
  ParameterSpec heads;
  heads.name = "wq";
  heads.shape = {64, 64};
  heads.blocks = {{16}, 4, false};
  const Routing routing = route({heads}, std::vector<RouteRule>{{"*", Rule::kMuon}}).value();
  MuonOptions muon;
  muon.form = kernels::NewtonSchulzForm::kStandard;
  // 5 steps of 4 m m n + 2 m m m with m = 16, n = 64, four times.
  EXPECT_EQ(
      matrix_flops(routing.parameters[0], muon), 4.0 * 5 * (4 * 16 * 16 * 64 + 2 * 16 * 16 * 16));
}

TEST(WholeMatrices, ABucketIsOneSegmentOrderedByOwner) {
  const Routing routing = routed(std::vector<Shape>(12, {16, 16}), Rule::kMuon);
  const BufferPlan plan = plan_whole(routing, 3);
  ASSERT_EQ(plan.buckets.size(), 1U);
  EXPECT_EQ(plan.buckets[0].counts, std::vector<std::size_t>(3, 4 * 256));
  std::vector<int> owners;
  for (const MatrixTask& task : plan.tasks) {
    owners.push_back(task.computing.at(0));
  }
  EXPECT_TRUE(std::is_sorted(owners.begin(), owners.end()));
}

TEST(WholeMatrices, BucketsKeepParametersWholeAndMayBeUneven) {
  const Routing routing = routed({{16, 16}, {64, 64}, {16, 16}}, Rule::kMuon);
  const BufferPlan plan = plan_whole(routing, 2, 1);
  ASSERT_EQ(plan.buckets.size(), 3U);
  EXPECT_EQ(plan.buckets[1].parameters, std::vector<std::size_t>{1});
  EXPECT_EQ(*std::max_element(plan.buckets[1].counts.begin(), plan.buckets[1].counts.end()), 4096U);
}

TEST(WholeMatrices, KeepsStacksWholeAndInOneCollectiveWhenThatIsBalanced) {
  const Routing routing = routed(std::vector<Shape>(4, {4, 8, 8}), Rule::kMuon);
  EXPECT_EQ(plan_whole(routing, 2).buckets.size(), 1U);
}

TEST(WholeMatrices, SplitsAStackBetweenMatricesWhenItWouldOverloadItsOwner) {
  const Routing routing = routed({{4, 8, 8}}, Rule::kMuon);
  const BufferPlan plan = plan_whole(routing, 2);
  EXPECT_EQ(plan.shards[0].at(0).size, 128U);
  EXPECT_EQ(plan.shards[1].at(0).parameter_begin, 128U);
}

TEST(WholeMatrices, ASplitStackIsASegmentOfItsOwn) {
  const Routing routing = routed({{64, 64}, {5, 64, 64}, {64, 64}}, Rule::kMuon);
  const BufferPlan plan = plan_whole(routing, 7);
  const auto stack =
      std::find_if(plan.buckets.begin(), plan.buckets.end(), [](const Bucket& bucket) {
        return bucket.parameters == std::vector<std::size_t>{1};
      });
  ASSERT_NE(stack, plan.buckets.end());
  EXPECT_EQ(stack->size, 5U * 64 * 64);
}

TEST(WholeMatrices, GivesNothingToRanksBeyondTheNumberOfMatrices) {
  const Routing routing = routed({{4, 4}, {6, 6}}, Rule::kMuon);
  const BufferPlan plan = plan_whole(routing, 5);
  EXPECT_TRUE(plan.shards[4].empty());
  EXPECT_EQ(plan.newton_schulz_flops[4], 0.0);
}

}  // namespace
}  // namespace muster::optimizer
