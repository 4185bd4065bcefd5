// SPDX-License-Identifier: Apache-2.0
// Losses, bias and statistics of routers: values by hand.
#include "tests/unit/parallel/experts/router/case.h"

#include <gtest/gtest.h>

#include <limits>
#include <numeric>

namespace muster::parallel {
namespace {

using test::normal_values;
using test::Routed;
using test::routed;
using test::Values;

const RouterOptions kSoftmax{2, 1, RouterScore::kSoftmax, true, 1.0};
const RouterOptions kSigmoid{2, 1, RouterScore::kSigmoid, true, 1.0};
const double kLog3 = std::log(3.0);

TEST(RouterLosses, SwitchLossByHand) {
  // Probabilities (3/4, 1/4), (1/2, 1/2): P = (5/8, 3/8). Both to expert 0: f = (1, 0).
  const Values scores{0.75, 0.25, 0.5, 0.5};
  const Values counts{2, 0};
  EXPECT_NEAR(switch_loss<double>(kSoftmax, 2, scores, counts, 2, 7, {}), 2 * 5.0 / 8, 1e-15);
  // Sigmoid scores are normalised first: (3/4, 1/4) is the same as (0.6, 0.2).
  const Values sigmoids{0.6, 0.2, 0.1, 0.1};
  EXPECT_NEAR(switch_loss<double>(kSigmoid, 2, sigmoids, counts, 2, 7, {}), 2 * 5.0 / 8, 1e-15);
}

TEST(RouterLosses, SwitchLossOfAnEvenLoadIsOne) {
  const RouterOptions o{8, 2, RouterScore::kSoftmax, true, 1.0};
  const Values scores = routed(o, normal_values(1, 10 * 8)).scores;
  const Values counts(8, 5);  // of 20 tokens
  EXPECT_NEAR(switch_loss<double>(o, 10, scores, counts, 20, 1, {}), 1, 1e-14);
}

TEST(RouterLosses, CountsOfTheGroupTakeTheirOwnNumberOfTokens) {
  const Values scores{0.75, 0.25};
  const Values counts{30, 10};  // of 40 tokens of all ranks: f = (3/4, 1/4)
  const double loss = switch_loss<double>(kSoftmax, 1, scores, counts, 40, 1, {});
  EXPECT_NEAR(loss, 2 * (0.75 * 0.75 + 0.25 * 0.25), 1e-15);
}

TEST(RouterLosses, SequenceLossByHand) {
  // First sequence: P = (5/8, 3/8), both to expert 0: f = (2, 0). Second: P = (1/4, 3/4), one each:
  // f = (1, 1).
  const Values scores{0.75, 0.25, 0.5, 0.5, 0.125, 0.875, 0.375, 0.625};
  const std::vector<std::int32_t> choices{0, 0, 1, 0};
  const double loss = sequence_loss<double>(kSoftmax, 4, 2, scores, choices, 5, {});
  EXPECT_NEAR(loss, (2 * 5.0 / 8 + 1) / 2, 1e-15);
}

TEST(RouterLosses, ZLossByHand) {
  // logsumexp(0, log 3) = log 4, of (log 3 + 5, 5): log 4 + 5.
  const Values logits{0, kLog3, kLog3 + 5, 5};
  const double a = std::log(4.0);
  const double b = std::log(4.0) + 5;
  EXPECT_NEAR(router_z_loss<double>(2, 2, logits, 1, {}), (a * a + b * b) / 2, 1e-14);
}

TEST(RouterLosses, ZLossOfLargeLogitsIsFinite) {
  const Values logits{2000, -2000, 2000, 2000};
  const double b = 2000 + std::log(2.0);
  const double loss = router_z_loss<double>(2, 2, logits, 1, {});
  EXPECT_NEAR(loss, (2000.0 * 2000 + b * b) / 2, 1e-6);
}

TEST(RouterLosses, NoTokensLoseNothing) {
  Values none;
  const Values counts{0, 0};
  EXPECT_EQ(switch_loss<double>(kSoftmax, 0, {}, counts, 0, 1, none), 0);
  EXPECT_EQ(sequence_loss<double>(kSoftmax, 0, 4, {}, {}, 1, none), 0);
  EXPECT_EQ(router_z_loss<double>(0, 2, {}, 1, none), 0);
}

TEST(RouterLosses, ATokenWhoseScoresUnderflowedCountsNothing) {
  const Values scores{0, 0, 0.6, 0.2};
  Values dlogits(4);
  const Values counts{2, 0};
  const double loss = switch_loss<double>(kSigmoid, 2, scores, counts, 2, 1, dlogits);
  EXPECT_NEAR(loss, 2 * 0.75 / 2, 1e-15);
  EXPECT_EQ(dlogits[0], 0);
  EXPECT_NE(dlogits[2], 0);
}

TEST(RouterBias, MovesAgainstTheLoadByTheRate) {
  std::vector<float> bias{0.5F, 0, 0, 0};
  const Values counts{8, 4, 0, 4};  // mean 4
  update_router_bias(bias, counts, 0.25, false);
  EXPECT_EQ(bias, (std::vector<float>{0.25F, 0, 0.25F, 0}));
}

TEST(RouterBias, RecentresToMeanZero) {
  std::vector<float> bias{0, 0, 0, 0};
  const Values counts{12, 0, 0, 0};
  update_router_bias(bias, counts, 0.5, true);
  EXPECT_EQ(bias, (std::vector<float>{-0.75F, 0.25F, 0.25F, 0.25F}));
}

TEST(RouterBias, WithoutTokensStaysWhereItIs) {
  std::vector<float> bias{1, -1};
  update_router_bias(bias, Values{0, 0}, 0.5, false);
  EXPECT_EQ(bias, (std::vector<float>{1, -1}));
}

TEST(RouterBias, RepeatedUpdatesEvenASkewedRouter) {
  const RouterOptions o{8, 2, RouterScore::kSigmoid, true, 1.0};
  auto logits = test::cast<float>(normal_values(2, 512 * 8));
  for (std::size_t i = 0; i < logits.size(); i += 8) {
    logits[i] += 3;  // everybody's favourite
  }
  std::vector<float> bias(8);
  double first = 0;
  double last = 0;
  for (int step = 0; step < 400; ++step) {
    const Routed<float> r = routed(o, logits, bias);
    const Values counts(r.counts.begin(), r.counts.end());
    last = router_statistics<float>(512, 8, r.scores, counts).max_violation;
    first = step == 0 ? last : first;
    update_router_bias(bias, counts, 2e-3, true);
  }
  EXPECT_GT(first, 2);
  EXPECT_LT(last, 0.1);
}

TEST(RouterStatistics, ByHand) {
  // Mean 2: deviations 2, 0, -2, 0.
  const Values counts{4, 2, 0, 2};
  const Values scores{0.25, 0.25, 0.25, 0.25, 0.5, 0.5, 0, 0};
  const RouterStatistics s = router_statistics<double>(2, 4, scores, counts);
  EXPECT_DOUBLE_EQ(s.max_violation, 1);
  EXPECT_DOUBLE_EQ(s.min_violation, 1);
  EXPECT_DOUBLE_EQ(s.dead_share, 0.25);
  EXPECT_NEAR(s.load_entropy, 1.5 * std::log(2.0), 1e-15);  // 1/2, 1/4, 1/4
  EXPECT_NEAR(s.router_entropy, (std::log(4.0) + std::log(2.0)) / 2, 1e-15);
  EXPECT_DOUBLE_EQ(s.coefficient_of_variation, std::sqrt(8.0 / 4) / 2);
}

TEST(RouterStatistics, OfAnEvenLoadAreThoseOfPerfection) {
  const Values counts(16, 3);
  const Values scores(16, 0.9);  // sigmoids: normalised for the entropy
  const RouterStatistics s = router_statistics<double>(1, 16, scores, counts);
  EXPECT_EQ(s.max_violation, 0);
  EXPECT_EQ(s.min_violation, 0);
  EXPECT_EQ(s.dead_share, 0);
  EXPECT_NEAR(s.load_entropy, std::log(16.0), 1e-14);
  EXPECT_NEAR(s.router_entropy, std::log(16.0), 1e-14);
  EXPECT_EQ(s.coefficient_of_variation, 0);
}

TEST(RouterStatistics, OfACollapseAreExtreme) {
  const Values counts{10, 0, 0, 0};
  const Values scores{1, 0, 0, 0};
  const RouterStatistics s = router_statistics<double>(1, 4, scores, counts);
  EXPECT_DOUBLE_EQ(s.max_violation, 3);
  EXPECT_EQ(s.load_entropy, 0);
  EXPECT_EQ(s.router_entropy, 0);
  EXPECT_DOUBLE_EQ(s.coefficient_of_variation, std::sqrt(3.0));
}

TEST(RouterStatistics, WithoutTokensAreZero) {
  const RouterStatistics s = router_statistics<double>(0, 4, {}, Values(4, 0));
  EXPECT_EQ(s.max_violation, 0);
  EXPECT_EQ(s.router_entropy, 0);
  EXPECT_EQ(s.dead_share, 1);
}

}  // namespace
}  // namespace muster::parallel
