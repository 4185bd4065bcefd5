// SPDX-License-Identifier: Apache-2.0
// The plan as a report: its figures against formulas derived by hand.
#include "tests/unit/optimizer/layout/model.h"

#include <muster/optimizer/plan.h>

#include <gmock/gmock.h>

#include <algorithm>
#include <ctime>
#include <numeric>

namespace muster::optimizer {
namespace {

using ::testing::HasSubstr;

ParameterSpec spec_of(const std::string& name, Shape shape) {
  ParameterSpec spec;
  spec.name = name;
  spec.shape = std::move(shape);
  return spec;
}

// 32 layers, d = 4096, feed-forward 14336, 1024 key and value rows, matrices only: 6.98e9
// parameters in 224 matrices, 6.66e14 flops by the standard form.
std::vector<ParameterSpec> dense_7b() {
  std::vector<ParameterSpec> specs;
  for (int layer = 0; layer < 32; ++layer) {
    const std::string prefix = "layers." + std::to_string(layer) + ".";
    specs.push_back(spec_of(prefix + "wq", {4096, 4096}));
    specs.push_back(spec_of(prefix + "wk", {1024, 4096}));
    specs.push_back(spec_of(prefix + "wv", {1024, 4096}));
    specs.push_back(spec_of(prefix + "wo", {4096, 4096}));
    specs.push_back(spec_of(prefix + "gate", {14336, 4096}));
    specs.push_back(spec_of(prefix + "up", {14336, 4096}));
    specs.push_back(spec_of(prefix + "down", {4096, 14336}));
  }
  return specs;
}

OptimizerOptions options_for(Layout layout, Rule rule = Rule::kMuon) {
  OptimizerOptions options;
  options.layout = layout;
  options.routes = {{"*", rule, "all", 0.0, 1.0}};
  options.muon.form = kernels::NewtonSchulzForm::kStandard;
  return options;
}

PlanReport reported(std::vector<ParameterSpec> specs, const OptimizerOptions& options, int ranks) {
  return report_plan(std::move(specs), options, ranks, ranks).value();
}

double max_over(const RegionCost& region, double (*of)(const RankCost&)) {
  double most = 0;
  for (const RankCost& cost : region.cost) {
    most = std::max(most, of(cost));
  }
  return most;
}

double mean_over(const RegionCost& region, double (*of)(const RankCost&)) {
  double sum = 0;
  for (const RankCost& cost : region.cost) {
    sum += of(cost);
  }
  return sum / region.ranks;
}

double flops_of(const RankCost& cost) {
  return cost.newton_schulz_flops;
}

double exchange_of(const RankCost& cost) {
  return cost.traffic.exchange;
}

double states_of(const RankCost& cost) {
  return cost.state_bytes;
}

// The fullest rank against an equal share of the work done once.
double max_over_ideal(const RegionCost& region) {
  return max_over(region, flops_of) / (mean_over(region, flops_of) / region.repeated_newton_schulz);
}

TEST(Plan, ReproducesTheWorkedExampleOfADense7BModel) {
  struct Row {
    int ranks;
    double flat;
    double repeated;
    double packed;
    double memory;
  };

  constexpr Row kRows[] = {
      {32, 1.00, 1.00, 1.00, 1.00},
      {64, 1.47, 1.26, 1.06, 1.08},
      {128, 2.11, 1.79, 1.06, 1.08},
      {256, 4.23, 2.68, 2.11, 2.15},
      {512, 8.45, 4.47, 4.23, 4.31}};
  for (const Row& row : kRows) {
    SCOPED_TRACE(row.ranks);
    const auto flat = reported(dense_7b(), options_for(Layout::kFlatRedundant), row.ranks);
    const auto whole = reported(dense_7b(), options_for(Layout::kWholeMatrices), row.ranks);
    const RegionCost& packed = whole.regions.at(0);
    EXPECT_NEAR(max_over_ideal(flat.regions.at(0)), row.flat, 0.005);
    EXPECT_NEAR(flat.regions[0].repeated_newton_schulz, row.repeated, 0.005);
    EXPECT_NEAR(max_over_ideal(packed), row.packed, 0.005);
    EXPECT_NEAR(max_over(packed, states_of) / mean_over(packed, states_of), row.memory, 0.005);
    EXPECT_NEAR(mean_over(packed, flops_of) * row.ranks, 6.66e14, 0.005e14);
    EXPECT_EQ(packed.elements, 6979321856);
    EXPECT_LT(flat.regions[0].cut_matrices, row.ranks);
  }
}

// Scheme D.
TEST(Plan, WholeMatricesMoveNothingInsideTheUpdate) {
  const RegionCost region =
      reported(dense_7b(), options_for(Layout::kWholeMatrices), 64).regions.at(0);
  EXPECT_EQ(max_over(region, exchange_of), 0.0);
  EXPECT_EQ(region.cut_matrices, 0);
  EXPECT_EQ(region.repeated_newton_schulz, 1.0);
}

// The base of every scheme: reduce-scatter rho b_g P, all-gather rho b_p P.
TEST(Plan, ReductionAndGatherFollowTheRingFormulas) {
  constexpr double kElements = 6979321856;
  for (const Layout layout :
       {Layout::kWholeMatrices, Layout::kFlatRedundant, Layout::kFlatOwner, Layout::kRowShards}) {
    std::vector<ParameterSpec> specs = dense_7b();
    for (ParameterSpec& spec : specs) {
      spec.dtype = DType::kBFloat16;
    }
    const RegionCost region = reported(specs, options_for(layout), 64).regions.at(0);
    for (const RankCost& cost : region.cost) {
      EXPECT_NEAR(cost.traffic.reduce_scatter, 63.0 / 64 * 4 * kElements, 1);
      EXPECT_NEAR(cost.traffic.all_gather, 63.0 / 64 * 2 * kElements, 1);
    }
    EXPECT_EQ(region.cost[0].parameter_bytes, 2 * kElements);
    EXPECT_EQ(region.cost[0].gradient_bytes, 4 * kElements);
    EXPECT_NEAR(
        mean_over(region, [](const RankCost& c) { return c.master_bytes; }) * 64, 4 * kElements, 1);
  }
}

// Scheme A.
TEST(Plan, ReplicasAllReduceAndGatherNothing) {
  const RegionCost region = reported(dense_7b(), options_for(Layout::kReplicated), 8).regions.at(0);
  EXPECT_NEAR(region.cost[5].traffic.reduce_scatter, 2 * 7.0 / 8 * 4 * 6979321856.0, 1);
  EXPECT_EQ(region.cost[5].traffic.all_gather, 0);
  EXPECT_EQ(region.cost[5].state_bytes, 4 * 6979321856.0);
  EXPECT_EQ(region.repeated_newton_schulz, 8);
  EXPECT_NEAR(region.cost[7].newton_schulz_flops, 6.66e14, 0.005e14);
}

// Scheme B: a rank is part of at most two cut matrices that are shorter than a shard, and sends
// its part of each to one other rank.
TEST(Plan, RedundantFlatShardsSendAtMostTwoPartsWhenMatricesAreShorterThanShards) {
  const RegionCost region =
      reported(dense_7b(), options_for(Layout::kFlatRedundant), 64).regions.at(0);
  const double largest = 4.0 * 14336 * 4096;
  EXPECT_GT(max_over(region, exchange_of), 0);
  EXPECT_LE(max_over(region, exchange_of), 2 * largest);
}

// Scheme B, a matrix cut into two halves: each goes to the other holder, nothing comes back.
TEST(Plan, RedundantFlatShardsCountThePartsThatAreSent) {
  const RegionCost region =
      reported(
          {spec_of("a", {64, 128}), spec_of("b", {64, 128}), spec_of("c", {64, 128})},
          options_for(Layout::kFlatRedundant),
          2)
          .regions.at(0);
  EXPECT_EQ(region.cut_matrices, 1);
  EXPECT_EQ(region.cost[0].traffic.exchange, 4.0 * 64 * 64);
  EXPECT_EQ(region.cost[1].traffic.exchange, 4.0 * 64 * 64);
  EXPECT_DOUBLE_EQ(region.repeated_newton_schulz, 4.0 / 3);
}

// Scheme C: 2 b_u fragment, there and back.
TEST(Plan, OwnedFlatShardsSendAPartThereAndItsResultBack) {
  const RegionCost region =
      reported({spec_of("a", {64, 64}), spec_of("b", {32, 32})}, options_for(Layout::kFlatOwner), 2)
          .regions.at(0);
  // Shards of 2560: rank 0 has 2560 of the 4096 elements of a and owns it, rank 1 has 1536.
  EXPECT_EQ(region.cost[1].traffic.exchange, 4.0 * 1536);
  EXPECT_EQ(region.cost[0].traffic.exchange, 4.0 * 1536);
  EXPECT_EQ(region.repeated_newton_schulz, 1.0);
}

// Scheme F: 2 rho b_u P / N when counts divide.
TEST(Plan, RowShardsExchangeEveryDirectionOnceEachWay) {
  const std::vector<ParameterSpec> specs = [] {
    std::vector<ParameterSpec> all;
    for (int i = 0; i < 16; ++i) {
      all.push_back(spec_of("w" + std::to_string(i), {64, 96}));
    }
    return all;
  }();
  const RegionCost region = reported(specs, options_for(Layout::kRowShards), 8).regions.at(0);
  for (const RankCost& cost : region.cost) {
    EXPECT_DOUBLE_EQ(cost.traffic.exchange, 2 * 7.0 / 8 * 4 * (16 * 64 * 96) / 8);
  }
  EXPECT_DOUBLE_EQ(max_over_ideal(region), 1.0);
}

TEST(Plan, CountsTheCollectivesOfAStep) {
  const std::vector<ParameterSpec> specs{
      spec_of("a", {64, 64}), spec_of("b", {64, 64}), spec_of("c", {64, 64})};
  const auto collectives = [&](Layout layout, int ranks) {
    return reported(specs, options_for(layout), ranks).regions.at(0).collectives;
  };
  EXPECT_EQ(collectives(Layout::kWholeMatrices, 2), 2);
  EXPECT_EQ(collectives(Layout::kFlatRedundant, 2), 3);  // one exchange
  EXPECT_EQ(collectives(Layout::kFlatOwner, 2), 4);      // there and back
  EXPECT_EQ(collectives(Layout::kRowShards, 2), 8);      // a bucket per parameter
  EXPECT_EQ(collectives(Layout::kReplicated, 2), 1);
  EXPECT_EQ(collectives(Layout::kRowShards, 1), 0);
}

TEST(Plan, CountsStatesInTheirStorageTypes) {
  const auto states = [](Rule rule, StateType type) {
    OptimizerOptions options = options_for(Layout::kWholeMatrices, rule);
    options.routes[0].state_type = type;
    return reported({spec_of("w", {64, 80})}, options, 1).of_rank(0).state_bytes;
  };
  constexpr double kSize = 5120;
  EXPECT_EQ(states(Rule::kAdamW, StateType::kFloat32), 8 * kSize);
  EXPECT_EQ(states(Rule::kAdam, StateType::kBFloat16), 4 * kSize);
  EXPECT_EQ(states(Rule::kMuon, StateType::kFloat32), 4 * kSize);
  EXPECT_EQ(states(Rule::kMomentum, StateType::kInt8Block), kSize + 4 * kSize / 256);
  EXPECT_EQ(states(Rule::kRmsProp, StateType::kBFloat16), 2 * kSize);
  EXPECT_EQ(states(Rule::kSgd, StateType::kFloat32), 0);
}

TEST(Plan, EightBitBlocksRestartWithEveryMatrixOfAStack) {
  OptimizerOptions options = options_for(Layout::kWholeMatrices);
  options.routes[0].state_type = StateType::kInt8Block;
  // 5 matrices of 1000 elements: 4 blocks each.
  const RankCost cost = reported({spec_of("w", {5, 10, 100})}, options, 1).of_rank(0);
  EXPECT_EQ(cost.state_bytes, 5000 + 4 * 5 * 4);
}

TEST(Plan, AdaptiveClippingAddsUpTheNormsOfCutRows) {
  OptimizerOptions options = options_for(Layout::kWholeMatrices, Rule::kAdamW);
  options.clipping.agc.emplace();
  // 3 rows of 1024 over 2 ranks: the cut at 1536 is inside row 1. Two doubles, all-reduced.
  const RankCost cost = reported({spec_of("w", {3, 1024})}, options, 2).of_rank(1);
  EXPECT_EQ(cost.traffic.agc, 2 * 0.5 * 2 * 8);
}

TEST(Plan, SumsRegionsAndRepeatsThoseOfExperts) {
  std::vector<ParameterSpec> specs{spec_of("dense", {8, 8}), spec_of("experts", {3, 8, 8})};
  specs[1].placement = Placement::kExpert;
  const PlanReport report = report_plan(specs, options_for(Layout::kWholeMatrices), 8, 2).value();
  ASSERT_EQ(report.regions.size(), 2U);
  EXPECT_EQ(report.regions[1].name, "expert matrices fp32");
  EXPECT_EQ(report.regions[1].ranks, 2);
  EXPECT_EQ(report.of_rank(7).parameter_bytes, 4.0 * (64 + 192));
  EXPECT_EQ(report.of_rank(7).state_bytes + report.of_rank(6).state_bytes, 4.0 * 192);
}

TEST(Plan, MatchesTheRegionPlanThatRunsUse) {
  for (const Layout layout : kAllLayouts) {
    SCOPED_TRACE(to_string(layout));
    const OptimizerOptions options = options_for(layout);
    const std::vector<ParameterSpec> specs{
        spec_of("a", {61, 37}), spec_of("b", {5, 20, 20}), spec_of("c", {96, 16})};
    const RegionCost region = reported(specs, options, 7).regions.at(0);
    const BufferPlan plan =
        plan_buffer(route(specs, options.routes).value(), options, kMatrices, 7);
    for (std::size_t rank = 0; rank < 7; ++rank) {
      std::size_t stored = 0;
      for (const Shard& shard : plan.shards[rank]) {
        stored += shard.size;
      }
      EXPECT_EQ(region.cost[rank].state_bytes, 4.0 * static_cast<double>(stored));
      EXPECT_DOUBLE_EQ(region.cost[rank].newton_schulz_flops, plan.newton_schulz_flops[rank]);
    }
  }
}

// 60 layers of 384 experts with three matrices each. It takes 0.06 s; a plan that visits all ranks
// for every matrix would take minutes.
TEST(Plan, ManyExpertsOnManyRanksArePlannedInTwoSeconds) {
  std::vector<ParameterSpec> specs;
  for (int layer = 0; layer < 60; ++layer) {
    for (const char* name : {"gate", "up", "down"}) {
      specs.push_back(spec_of("layers." + std::to_string(layer) + "." + name, {384, 2048, 7168}));
    }
  }
  for (const Layout layout : kAllLayouts) {
    SCOPED_TRACE(to_string(layout));
    const std::clock_t start = std::clock();  // of this process, whatever else the machine does
    const PlanReport report = reported(specs, options_for(layout), 4096);
    EXPECT_LT(std::clock() - start, 2 * CLOCKS_PER_SEC);
    EXPECT_EQ(report.regions.at(0).matrices, 69120);
  }
}

TEST(Plan, ManyMoreRanksThanMatricesArePlannedToo) {
  for (const Layout layout : kAllLayouts) {
    SCOPED_TRACE(to_string(layout));
    const RegionCost region = reported(dense_7b(), options_for(layout), 100000).regions.at(0);
    ASSERT_EQ(region.cost.size(), 100000U);
    EXPECT_GT(region.cost.front().state_bytes, 0);
  }
}

TEST(Plan, NoParametersAreAPlanToo) {
  const PlanReport report = reported({}, options_for(Layout::kWholeMatrices), 4);
  EXPECT_TRUE(report.regions.empty());
  EXPECT_NE(report.hash, 0U);
  EXPECT_THAT(to_text(report), HasSubstr("no parameters"));
}

TEST(Plan, RefusesRankCountsThatCannotBe) {
  const OptimizerOptions options = options_for(Layout::kWholeMatrices);
  EXPECT_THAT(report_plan({}, options, 0, 1).status().message(), HasSubstr("at least 1 rank"));
  const Status status = report_plan({}, options, 8, 3).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("3 ranks that share each expert do not divide 8"));
  EXPECT_FALSE(report_plan({}, options, 8, 0).ok());
}

TEST(Plan, RefusesWhatTheOptimizerWouldRefuse) {
  OptimizerOptions options = options_for(Layout::kWholeMatrices);
  EXPECT_THAT(
      report_plan({spec_of("bias", {4})}, options, 2, 2).status().message(),
      HasSubstr("'bias' of shape [4] is routed to Muon"));
  options.cut_granularity = 0;
  EXPECT_THAT(report_plan({}, options, 2, 2).status().message(), HasSubstr("cut_granularity"));
}

TEST(Plan, PrintsEveryRegionAndTheirSum) {
  std::vector<ParameterSpec> specs{spec_of("w", {64, 64}), spec_of("norm", {64})};
  OptimizerOptions options = options_for(Layout::kFlatOwner);
  options.routes.insert(options.routes.begin(), {"norm", Rule::kAdamW, "norm", 0.0, 1.0});
  const std::string text = to_text(reported(specs, options, 3));
  EXPECT_THAT(text, HasSubstr("layout flat_owner"));
  EXPECT_THAT(text, HasSubstr("replicated elementwise fp32, held by 3 ranks"));
  EXPECT_THAT(text, HasSubstr("1 matrix, 1 cut"));
  EXPECT_THAT(text, HasSubstr("all together, 3 ranks"));
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    EXPECT_LE(end - begin, 90U) << text.substr(begin, end - begin);
    begin = end + 1;
  }
}

}  // namespace
}  // namespace muster::optimizer
