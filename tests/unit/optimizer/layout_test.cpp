#include "src/layout.h"

#include <muster/common/random.h>
#include <muster/kernels/optimizer_kernels.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>

namespace muster::optimizer {
namespace {

constexpr int kSteps = 5;

Routing routed(std::vector<std::vector<std::int64_t>> shapes, Rule rule) {
  std::vector<ParameterSpec> specs;
  for (auto& shape : shapes) {
    specs.push_back({"p" + std::to_string(specs.size()), std::move(shape), Placement::kReplicated});
  }
  const std::vector<RouteRule> rules{{"*", rule, "all", 0.0, 1.0}};
  return route(std::move(specs), rules).value();
}

RegionPlan plan(const Routing& routing, Rule rule, int ranks) {
  return plan_region(routing, Placement::kReplicated, rule, ranks, kSteps);
}

// How often each element of each parameter is owned.
std::vector<std::vector<int>> owners_per_element(const Routing& routing, const RegionPlan& region) {
  std::vector<std::vector<int>> owned;
  for (const RoutedParameter& parameter : routing.parameters) {
    owned.emplace_back(parameter.size, 0);
  }
  for (int rank = 0; rank < region.ranks; ++rank) {
    for (const Piece& piece : pieces_of(region, routing, rank)) {
      for (std::size_t i = 0; i < piece.size; ++i) {
        ++owned[piece.parameter][piece.parameter_begin + i];
      }
    }
  }
  return owned;
}

void expect_each_owned_once(const Routing& routing, const RegionPlan& region) {
  for (const auto& parameter : owners_per_element(routing, region)) {
    EXPECT_EQ(
        std::count(parameter.begin(), parameter.end(), 1),
        static_cast<std::ptrdiff_t>(parameter.size()));
  }
}

TEST(Layout, FlatShardsCoverEveryElementOnceForAnyNumberOfRanks) {
  const Routing routing = routed({{7}, {3, 5}, {1}, {129}, {2, 3, 4}}, Rule::kAdamW);
  for (const int ranks : {1, 2, 3, 5, 7, 16, 61}) {
    SCOPED_TRACE(ranks);
    expect_each_owned_once(routing, plan(routing, Rule::kAdamW, ranks));
  }
}

TEST(Layout, FlatShardsAreEqualAndAligned) {
  const Routing routing = routed({{100}, {37}}, Rule::kAdamW);
  const RegionPlan region = plan(routing, Rule::kAdamW, 3);
  ASSERT_EQ(region.segments.size(), 1U);
  EXPECT_EQ(region.segments[0].counts, (std::vector<std::size_t>{64, 64, 64}));
  EXPECT_EQ(region.size, 192U);
}

TEST(Layout, MatricesAreNeverCutForAnyNumberOfRanks) {
  const Routing routing =
      routed({{4, 6}, {6, 4}, {5, 3, 7}, {8, 8}, {3, 2, 2}, {11, 4, 4}}, Rule::kMuon);
  for (const int ranks : {1, 2, 3, 5, 7, 16, 61}) {
    SCOPED_TRACE(ranks);
    const RegionPlan region = plan(routing, Rule::kMuon, ranks);
    expect_each_owned_once(routing, region);
    for (int rank = 0; rank < ranks; ++rank) {
      for (const Piece& piece : pieces_of(region, routing, rank)) {
        const RoutedParameter& parameter = routing.parameters[piece.parameter];
        const std::size_t matrix = parameter.size / parameter.matrices;
        EXPECT_EQ(piece.parameter_begin % matrix, 0U);
        EXPECT_EQ(piece.size % matrix, 0U);
      }
    }
  }
}

TEST(Layout, OwnsAtMostOnePieceOfAParameter) {
  const Routing routing = routed({{5, 3, 7}, {8, 8}, {11, 4, 4}}, Rule::kMuon);
  for (const int ranks : {2, 3, 5, 7}) {
    const RegionPlan region = plan(routing, Rule::kMuon, ranks);
    for (int rank = 0; rank < ranks; ++rank) {
      std::vector<int> pieces(routing.parameters.size(), 0);
      for (const Piece& piece : pieces_of(region, routing, rank)) {
        EXPECT_EQ(++pieces[piece.parameter], 1);
      }
    }
  }
}

TEST(Layout, SegmentsTileTheRegionWithoutOverlap) {
  const Routing routing = routed({{5, 3, 7}, {8, 8}, {11, 4, 4}, {1, 9}}, Rule::kMuon);
  const RegionPlan region = plan(routing, Rule::kMuon, 7);
  std::size_t at = 0;
  for (const Segment& segment : region.segments) {
    EXPECT_GE(segment.begin, at);
    EXPECT_LT(segment.begin - at, kAlignmentFloats);
    at = std::accumulate(segment.counts.begin(), segment.counts.end(), segment.begin);
  }
  EXPECT_LE(at, region.size);
}

TEST(Layout, BalancesWithinTheBoundOfListSchedulingOverSingleMatrices) {
  const std::uint64_t seed = 5;
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random{seed};
  for (int round = 0; round < 100; ++round) {
    std::vector<std::vector<std::int64_t>> shapes(1 + random.below(12));
    double largest = 0;
    double total = 0;
    for (auto& shape : shapes) {
      const auto count = static_cast<std::int64_t>(1 + random.below(9));
      const auto rows = static_cast<std::int64_t>(1 + random.below(64));
      const auto cols = static_cast<std::int64_t>(1 + random.below(64));
      shape = {count, rows, cols};
      const double cost = kernels::newton_schulz_flops(rows, cols, kSteps);
      largest = std::max(largest, cost);
      total += cost * static_cast<double>(count);
    }
    const int ranks = 1 + static_cast<int>(random.below(8));
    const Routing routing = routed(shapes, Rule::kMuon);
    const auto loads = plan(routing, Rule::kMuon, ranks).newton_schulz_flops;
    const double fullest = *std::max_element(loads.begin(), loads.end());
    // Whole stacks only within the slack; else the last item was put on the least loaded rank,
    // which held no more than the mean.
    const double lower_bound = std::max(total / ranks, largest);
    EXPECT_LE(fullest, std::max(kWholeStackSlack * lower_bound, total / ranks + largest) * 1.0001);
    EXPECT_NEAR(std::accumulate(loads.begin(), loads.end(), 0.0), total, total * 1e-12);
  }
}

TEST(Layout, KeepsStacksWholeAndInOneCollectiveWhenThatIsBalanced) {
  const Routing routing = routed({{4, 8, 8}, {4, 8, 8}, {4, 8, 8}, {4, 8, 8}}, Rule::kMuon);
  EXPECT_EQ(plan(routing, Rule::kMuon, 2).segments.size(), 1U);
}

TEST(Layout, SplitsAStackBetweenMatricesWhenItWouldOverloadItsOwner) {
  const Routing routing = routed({{4, 8, 8}}, Rule::kMuon);
  const RegionPlan region = plan(routing, Rule::kMuon, 2);
  EXPECT_EQ(pieces_of(region, routing, 0).at(0).size, 128U);
  EXPECT_EQ(pieces_of(region, routing, 1).at(0).parameter_begin, 128U);
}

TEST(Layout, GivesNothingToRanksBeyondTheNumberOfMatrices) {
  const Routing routing = routed({{4, 4}, {6, 6}}, Rule::kMuon);
  const RegionPlan region = plan(routing, Rule::kMuon, 5);
  EXPECT_TRUE(pieces_of(region, routing, 4).empty());
  EXPECT_EQ(region.newton_schulz_flops[4], 0.0);
}

TEST(Layout, DescribesBytesOfEveryRank) {
  const Routing routing = routed({{4, 4}, {6, 6}}, Rule::kMuon);
  const std::string text = describe(plan(routing, Rule::kMuon, 3));
  EXPECT_NE(text.find("rank 0: 192 bytes"), std::string::npos) << text;
  EXPECT_NE(text.find("rank 2: 0 bytes"), std::string::npos) << text;
}

}  // namespace
}  // namespace muster::optimizer
