// SPDX-License-Identifier: Apache-2.0
// Invariants of every layout.
#include "tests/unit/optimizer/layout/model.h"

#include <muster/common/random.h>

#include <algorithm>

namespace muster::optimizer {
namespace {

OptimizerOptions with_layout(Layout layout, std::int64_t granularity = 256) {
  OptimizerOptions options;
  options.layout = layout;
  options.cut_granularity = granularity;
  return options;
}

// Shapes with every awkward property: primes, single rows and columns, stacks, large and tiny.
const std::vector<Shape> kMixed{
    {4, 6},
    {6, 4},
    {5, 3, 7},
    {61, 37},
    {1, 9},
    {3, 20, 20},
    {128, 32},
    {9, 1},
    {11, 4, 4},
    {2, 2}};

TEST(Layout, KeepsItsInvariantsForEveryLayoutAndAnyNumberOfRanks) {
  const Routing matrices = routed(kMixed, Rule::kMuon);
  const Routing elements = routed(kMixed, Rule::kAdamW);
  for (const Layout layout : kAllLayouts) {
    for (const int ranks : {1, 2, 3, 4, 5, 7, 8, 16, 61, 127}) {
      for (const std::int64_t granularity : {1, 7, 256}) {
        SCOPED_TRACE(
            std::string{to_string(layout)} + ", " + std::to_string(ranks) + " ranks, granularity " +
            std::to_string(granularity));
        OptimizerOptions options = with_layout(layout, granularity);
        for (const std::size_t bucket : {std::size_t{0}, std::size_t{1}, std::size_t{4000}}) {
          options.bucket_bytes = bucket;
          expect_sound(matrices, plan_buffer(matrices, options, kMatrices, ranks), granularity);
          expect_sound(elements, plan_buffer(elements, options, kElementwise, ranks), granularity);
        }
      }
    }
  }
}

TEST(Layout, KeepsItsInvariantsOnRandomModels) {
  const std::uint64_t seed = 5;
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random{seed};
  for (int round = 0; round < 60; ++round) {
    std::vector<Shape> shapes(1 + random.below(12));
    for (Shape& shape : shapes) {
      shape = {
          static_cast<std::int64_t>(1 + random.below(64)),
          static_cast<std::int64_t>(1 + random.below(64))};
      if (random.below(3) == 0) {
        shape.insert(shape.begin(), static_cast<std::int64_t>(1 + random.below(9)));
      }
    }
    const bool int8 = random.below(2) == 0;
    const Routing routing =
        routed(shapes, Rule::kMuon, int8 ? StateType::kInt8Block : StateType::kFloat32);
    const int ranks = 1 + static_cast<int>(random.below(12));
    for (const Layout layout : kAllLayouts) {
      SCOPED_TRACE(std::string{to_string(layout)} + ", round " + std::to_string(round));
      OptimizerOptions options = with_layout(layout);
      options.bucket_bytes = random.below(20000);
      options.exchange_bytes = 1 + random.below(40000);
      expect_sound(routing, plan_buffer(routing, options, kMatrices, ranks), 256);
    }
  }
}

TEST(Layout, GivesARegionWithoutParametersNoMemory) {
  const Routing routing = routed({{4, 4}}, Rule::kMuon);
  for (const Layout layout : kAllLayouts) {
    const BufferPlan plan = plan_buffer(routing, with_layout(layout), kElementwise, 3);
    EXPECT_EQ(plan.size, 0U);
    EXPECT_TRUE(plan.buckets.empty());
    EXPECT_EQ(plan.shards.size(), 3U);
  }
}

TEST(Layout, OneRankHasEverythingAndNothingMoves) {
  const Routing routing = routed(kMixed, Rule::kMuon);
  for (const Layout layout : kAllLayouts) {
    SCOPED_TRACE(to_string(layout));
    const BufferPlan plan = plan_buffer(routing, with_layout(layout), kMatrices, 1);
    EXPECT_EQ(plan.shards[0].size(), kMixed.size());
    EXPECT_TRUE(std::none_of(
        plan.tasks.begin(), plan.tasks.end(), [](const MatrixTask& task) { return task.moves; }));
    EXPECT_EQ(plan.round_ends, std::vector{plan.tasks.size()});
  }
}

TEST(Layout, ABucketTakesAParameterAsLongAsItIsNotFull) {
  const Routing routing = routed({{8, 8}, {8, 8}, {8, 8}}, Rule::kAdamW);
  OptimizerOptions options = with_layout(Layout::kWholeMatrices);
  for (const auto& [bytes, buckets] : {std::pair{256U, 3U}, {257U, 2U}, {512U, 2U}, {513U, 1U}}) {
    options.bucket_bytes = bytes;
    EXPECT_EQ(plan_buffer(routing, options, kElementwise, 2).buckets.size(), buckets) << bytes;
  }
}

TEST(Layout, BucketsHoldWholeParametersOfAboutTheSizeAskedForLastParametersFirst) {
  const Routing routing = routed({{64, 64}, {64, 64}, {64, 64}, {8, 8}, {64, 64}}, Rule::kAdamW);
  OptimizerOptions options = with_layout(Layout::kWholeMatrices);
  options.bucket_bytes = 16384;  // one parameter of 64 x 64
  const BufferPlan plan = plan_buffer(routing, options, kElementwise, 2);
  ASSERT_EQ(plan.buckets.size(), 4U);
  EXPECT_EQ(plan.buckets[0].parameters, std::vector<std::size_t>{4});
  EXPECT_EQ(plan.buckets[1].parameters, (std::vector<std::size_t>{2, 3}));
  EXPECT_EQ(plan.buckets[3].parameters, std::vector<std::size_t>{0});
}

TEST(Layout, SeparatesPlacementsRulesAndTypesIntoRegions) {
  std::vector<ParameterSpec> specs(4);
  specs[0] = {.name = "a", .shape = {8, 8}};
  specs[1] = {.name = "b", .shape = {8, 8}, .dtype = DType::kBFloat16};
  specs[2] = {.name = "c", .shape = {2, 8, 8}, .placement = Placement::kExpert};
  specs[3] = {.name = "norm", .shape = {8}};
  std::vector<RouteRule> rules(2);
  rules[0].pattern = "norm";
  rules[1] = {.pattern = "*", .rule = Rule::kMuon};
  const Routing routing = route(specs, rules).value();
  const std::vector<BufferKey> keys = buffer_keys(routing);
  ASSERT_EQ(keys.size(), 4U);
  for (const BufferKey& key : keys) {
    const BufferPlan plan = plan_buffer(routing, with_layout(Layout::kWholeMatrices), key, 2);
    EXPECT_EQ(plan.placed.size(), 1U);
    EXPECT_EQ(plan.key, key);
  }
}

TEST(Layout, RoundsKeepWhatARankAssemblesWithinTheExchangeSize) {
  const Routing routing = routed(std::vector<Shape>(24, {32, 32}), Rule::kMuon);
  OptimizerOptions options = with_layout(Layout::kRowShards);
  options.exchange_bytes = 2 * 32 * 32 * sizeof(float);
  const BufferPlan plan = plan_buffer(routing, options, kMatrices, 4);
  // 24 matrices, 4 owners, 2 at once each.
  EXPECT_EQ(plan.round_ends, (std::vector<std::size_t>{8, 16, 24}));
}

TEST(Layout, AMatrixLargerThanTheExchangeSizeHasARoundToItself) {
  const Routing routing = routed(std::vector<Shape>(3, {32, 32}), Rule::kMuon);
  OptimizerOptions options = with_layout(Layout::kRowShards);
  options.exchange_bytes = 1;
  const BufferPlan plan = plan_buffer(routing, options, kMatrices, 2);
  EXPECT_EQ(plan.round_ends, (std::vector<std::size_t>{2, 3}));
}

}  // namespace
}  // namespace muster::optimizer
