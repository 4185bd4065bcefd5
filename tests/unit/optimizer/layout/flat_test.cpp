// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/optimizer/layout/model.h"

#include <algorithm>

namespace muster::optimizer {
namespace {

BufferPlan plan_flat(
    const Routing& routing, Layout layout, int ranks, std::size_t bucket_bytes = 0) {
  OptimizerOptions options;
  options.layout = layout;
  options.bucket_bytes = bucket_bytes;
  options.cut_granularity = 16;
  return plan_buffer(routing, options, kMatrices, ranks);
}

std::size_t cut_matrices(const BufferPlan& plan) {
  return static_cast<std::size_t>(
      std::count_if(plan.tasks.begin(), plan.tasks.end(), [](const MatrixTask& task) {
        return task.fragments.size() > 1;
      }));
}

const std::vector<Shape> kUneven{{17, 32}, {61, 40}, {3, 24, 24}, {96, 16}, {40, 61}};

TEST(FlatLayout, CutsFewerMatricesThanThereAreRanksWhateverTheBuckets) {
  const Routing routing = routed(kUneven, Rule::kMuon);
  for (const Layout layout : {Layout::kFlatRedundant, Layout::kFlatOwner}) {
    for (const int ranks : {1, 2, 3, 4, 7}) {
      const BufferPlan one = plan_flat(routing, layout, ranks);
      const BufferPlan many = plan_flat(routing, layout, ranks, 1);
      EXPECT_LE(cut_matrices(one), static_cast<std::size_t>(ranks - 1));
      EXPECT_EQ(cut_matrices(many), cut_matrices(one));
      EXPECT_GT(many.buckets.size(), one.buckets.size());
    }
  }
}

TEST(FlatLayout, ShardsAreEvenOverAllBucketsTogether) {
  const Routing routing = routed(kUneven, Rule::kMuon);
  const BufferPlan plan = plan_flat(routing, Layout::kFlatOwner, 5, 4000);
  std::vector<std::size_t> stored(5, 0);
  for (const Bucket& bucket : plan.buckets) {
    for (std::size_t rank = 0; rank < stored.size(); ++rank) {
      stored[rank] += bucket.counts[rank];
    }
  }
  const auto [least, most] = std::minmax_element(stored.begin(), stored.end());
  EXPECT_LE(*most - *least, 2U * 16);
}

TEST(FlatLayout, AMatrixLongerThanAShardHasSeveralHolders) {
  const Routing routing = routed({{64, 64}}, Rule::kMuon);
  const BufferPlan plan = plan_flat(routing, Layout::kFlatRedundant, 8);
  ASSERT_EQ(plan.tasks.size(), 1U);
  EXPECT_EQ(plan.tasks[0].fragments.size(), 8U);
  EXPECT_EQ(plan.tasks[0].computing.size(), 8U);
}

TEST(FlatLayout, EveryHolderOfACutMatrixWorksItOutWhenRedundant) {
  const Routing routing = routed({{32, 32}, {32, 32}, {32, 32}}, Rule::kMuon);
  const BufferPlan plan = plan_flat(routing, Layout::kFlatRedundant, 2);
  EXPECT_EQ(plan.tasks[1].computing, (std::vector<int>{0, 1}));
  EXPECT_TRUE(plan.tasks[1].moves);
  EXPECT_FALSE(plan.tasks[0].moves);
  EXPECT_EQ(plan.newton_schulz_flops[0], plan.newton_schulz_flops[1]);
}

TEST(FlatLayout, TheHolderOfMostOfAMatrixOwnsIt) {
  // 4096 + 1024 elements in two shards of 2560: rank 0 has 2560 of the first matrix, rank 1 1536.
  const Routing routing = routed({{64, 64}, {32, 32}}, Rule::kMuon);
  const BufferPlan plan = plan_flat(routing, Layout::kFlatOwner, 2);
  EXPECT_EQ(plan.tasks[0].computing, std::vector<int>{0});
  EXPECT_EQ(plan.tasks[1].computing, std::vector<int>{1});
}

TEST(FlatLayout, EqualHoldersLeaveAMatrixToTheLessLoaded) {
  // Three shards of 4096: matrix 1 is halved between ranks 0 and 1, and rank 0 has matrix 0 alone;
  // rank 1 has nothing else that is whole.
  const Routing routing = routed({{32, 64}, {64, 64}, {64, 64}, {32, 64}}, Rule::kMuon);
  const BufferPlan plan = plan_flat(routing, Layout::kFlatOwner, 3);
  ASSERT_EQ(plan.tasks[1].fragments.size(), 2U);
  ASSERT_EQ(plan.tasks[1].fragments[0].size, plan.tasks[1].fragments[1].size);
  EXPECT_EQ(plan.tasks[1].computing, std::vector<int>{1});
  // Matrix 2 is halved between ranks 1 and 2; rank 1 has matrix 1 by now.
  EXPECT_EQ(plan.tasks[2].computing, std::vector<int>{2});
}

TEST(FlatLayout, CutsStacksInsideTheirMatrices) {
  const Routing routing = routed({{3, 32, 32}}, Rule::kMuon);
  const BufferPlan plan = plan_flat(routing, Layout::kFlatOwner, 2);
  EXPECT_EQ(plan.tasks[0].fragments.size(), 1U);
  EXPECT_EQ(plan.tasks[1].fragments.size(), 2U);
}

}  // namespace
}  // namespace muster::optimizer
