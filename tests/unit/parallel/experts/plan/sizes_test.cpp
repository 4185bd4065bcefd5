// SPDX-License-Identifier: Apache-2.0
// The calculator against the worked numbers of docs/concepts/experts.md.
#include <muster/parallel/experts/sizes.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace muster::parallel::testing {
namespace {

using ::testing::HasSubstr;

EpLayerShape layer_of(int experts, int ranks, int top_k) {
  EpLayerShape layer;
  layer.shape.experts = experts;
  layer.shape.ranks = ranks;
  layer.shape.top_k = top_k;
  layer.shape.tokens_max = 8192;
  layer.shape.padding = 128;
  layer.hidden = 7168;
  layer.ffn = 2048;
  return layer;
}

TEST(EpSizes, OfTheWorkedExample) {
  const EpSizes sizes = ep_sizes(layer_of(384, 8, 8)).value();
  EXPECT_NEAR(static_cast<double>(sizes.expert_bytes), 88.1e6, 0.05e6);
  EXPECT_NEAR(static_cast<double>(sizes.expert_gradient_bytes), 176.2e6, 0.05e6);
  EXPECT_NEAR(static_cast<double>(sizes.pool_weight_bytes), 4.23e9, 0.005e9);
  EXPECT_NEAR(static_cast<double>(sizes.pool_gradient_bytes), 8.46e9, 0.005e9);
  EXPECT_NEAR(static_cast<double>(sizes.receive_bytes), 1.11e9, 0.005e9);
  EXPECT_EQ(sizes.receive_rows, (65'536 + 127 * 96) / 128 * 128);
  EXPECT_NEAR(sizes.pad_fraction_worst, 0.186, 0.001);
  EXPECT_EQ(sizes.counts_bytes, 12'288);
  EXPECT_NEAR(sizes.forward_flops, 5.77e12, 0.005e12);
  EXPECT_NEAR(sizes.duplicate_bytes, 320e6, 2e6);
}

TEST(EpSizes, OfInferenceHaveNoGradients) {
  EpLayerShape layer = layer_of(384, 8, 8);
  const EpSizes training = ep_sizes(layer).value();
  layer.inference = true;
  const EpSizes inference = ep_sizes(layer).value();
  EXPECT_EQ(inference.pool_gradient_bytes + inference.home_gradient_bytes, 0);
  EXPECT_EQ(inference.reduce_bytes, 0);
  EXPECT_EQ(inference.pool_weight_bytes, training.pool_weight_bytes);
  // Training refuses fewer slots than own experts.
  layer.inference = false;
  layer.shape.slots = 47;
  EXPECT_FALSE(ep_trains(layer));
  EXPECT_EQ(ep_sizes(layer).value().pool_gradient_bytes, 0);
  layer.shape.slots = 48;
  EXPECT_TRUE(ep_trains(layer));
  EXPECT_EQ(ep_sizes(layer).value().pool_gradient_bytes, training.pool_gradient_bytes);
}

TEST(EpSizes, OfTheWireTable) {
  struct Row {
    int experts, ranks, top_k;
    double distinct, remote, plain, megabytes, milliseconds;
  };

  for (const Row& row : {
           Row{384, 8, 8, 5.28, 4.62, 7.0, 543, 1.21},
           Row{896, 8, 16, 7.07, 6.19, 14.0, 727, 1.62},
           Row{384, 64, 8, 7.64, 7.52, 7.88, 884, 1.96},
           Row{896, 64, 16, 14.36, 14.14, 15.75, 1660, 3.69},
       }) {
    const EpSizes sizes = ep_sizes(layer_of(row.experts, row.ranks, row.top_k)).value();
    EXPECT_NEAR(sizes.distinct_ranks, row.distinct, 0.01);
    EXPECT_NEAR(sizes.remote_rows, row.remote, 0.01);
    EXPECT_NEAR(sizes.remote_rows_not_deduplicated, row.plain, 0.01);
    EXPECT_NEAR(sizes.dispatch_bytes / 1e6, row.megabytes, 1);
    EXPECT_NEAR(sizes.dispatch_bytes / 450e9 * 1e3, row.milliseconds, 0.006);
  }
}

TEST(EpSizes, DistinctRanksAgreeWithCounting) {
  EpShape shape;
  shape.ranks = 3;
  shape.experts = 6;
  shape.top_k = 2;
  // 3 of 15 pairs of experts are on one rank.
  EXPECT_NEAR(ep_distinct_ranks(shape), (12 * 2 + 3 * 1) / 15.0, 1e-12);
  shape.top_k = 6;
  EXPECT_NEAR(ep_distinct_ranks(shape), 3, 1e-12);
  shape.ranks = 1;
  EXPECT_NEAR(ep_distinct_ranks(shape), 1, 1e-12);
}

TEST(EpSizes, ThePlanTakesWhatItAllocates) {
  EpLayerShape layer = layer_of(32, 4, 3);
  layer.shape.tokens_max = 50;
  layer.shape.slots = 3;
  const EpPlan plan{layer.shape, layer.balance};
  const std::size_t tables = plan.counts.size() * 4 + plan.rows.size() * 8 +
                             plan.groups.size() * 4 + plan.slot_experts.size() * 4 +
                             (plan.begins.size() + plan.ends.size() + plan.group_rows.size()) * 8;
  EXPECT_EQ(
      static_cast<std::size_t>(ep_sizes(layer).value().plan_bytes),
      tables + plan.destinations.capacity() * 8);
}

// (rho - 1) (T_gemm + T_dispatch) at 1.02 and 1.46: 0.8 and 18 ms at 148 TFLOP/s, 0.19 and 4.4 at
// 700, 0.1 and 2.1 at 1750.
TEST(EpBreakEven, GainsOfTheWorkedExample) {
  const EpSizes sizes = ep_sizes(layer_of(384, 8, 8)).value();
  for (const auto& [tera, small, large] :
       {std::tuple{148.0, 0.80, 18.5}, {700.0, 0.19, 4.35}, {1750.0, 0.09, 2.07}}) {
    EpRates rates;
    rates.gemm_flops = tera * 1e12;
    rates.link_bytes = 450e9;
    rates.plan_seconds = 0;
    rates.copies_out = 1;
    const EpBreakEven even = ep_break_even(sizes, rates, false);
    const double millis = 1e3 * (even.compute_seconds + even.dispatch_seconds);
    EXPECT_NEAR(0.02 * millis, small, 0.01);
    EXPECT_NEAR(0.46 * millis, large, 0.06);
    EXPECT_NEAR(even.cost_seconds * 1e3, 0.196, 0.001);  // one copy of 88.1 MB
    EXPECT_NEAR(even.imbalance, 1 + 0.196 / millis, 1e-4);
  }
}

TEST(EpBreakEven, TokensAtWhichBothTakeTheSame) {
  const EpSizes sizes = ep_sizes(layer_of(384, 8, 8)).value();
  EpRates rates;
  rates.gemm_flops = 700e12;
  rates.link_bytes = 450e9;
  for (const bool backward : {false, true}) {
    const EpBreakEven even = ep_break_even(sizes, rates, backward);
    EXPECT_NEAR(ep_break_even_tokens(even, 8192, even.imbalance), 8192, 1e-6);
    const double tokens = ep_break_even_tokens(even, 8192, 1.5);
    EpLayerShape fewer = layer_of(384, 8, 8);
    fewer.shape.tokens_max = std::llround(tokens);
    EXPECT_NEAR(ep_break_even(ep_sizes(fewer).value(), rates, backward).imbalance, 1.5, 0.002);
    EXPECT_TRUE(std::isinf(ep_break_even_tokens(even, 8192, 1)));
  }
}

TEST(EpSizes, RefuseWhatIsNoLayer) {
  EpLayerShape layer = layer_of(384, 7, 8);
  EXPECT_THAT(ep_sizes(layer).status().message(), HasSubstr("multiple of the 7 ranks"));
  layer = layer_of(384, 8, 8);
  layer.hidden = 0;
  EXPECT_THAT(ep_sizes(layer).status().message(), HasSubstr("hidden must be 1..16777216, got 0"));
  layer.hidden = 8;
  layer.ffn = -1;
  EXPECT_THAT(ep_sizes(layer).status().message(), HasSubstr("ffn must be 1..16777216, got -1"));
}

}  // namespace
}  // namespace muster::parallel::testing
