// SPDX-License-Identifier: Apache-2.0
// Choice of experts by a router, and their gates.
#include "tests/support/floats.h"
#include "tests/unit/parallel/experts/router/case.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <numeric>
#include <set>

namespace muster::parallel {
namespace {

using muster::test::kInfinity;
using muster::test::kNan;

using test::all_options;
using test::named;
using test::normal_values;
using test::Routed;
using test::routed;
using test::Values;

RouterOptions options(
    std::int64_t experts,
    std::int64_t top_k,
    RouterScore score = RouterScore::kSoftmax,
    bool renormalise = true) {
  return {experts, top_k, score, renormalise, 1.0};
}

TEST(RouterChoice, TakesTheLargestScoresInDescendingOrder) {
  const Routed<double> r = routed<double>(options(4, 3), {0, 3, 1, 2});
  EXPECT_EQ(r.choices, (std::vector<std::int32_t>{1, 3, 2}));
  EXPECT_EQ(r.counts, (std::vector<std::int32_t>{0, 1, 1, 1}));
}

TEST(RouterChoice, TiesGoToTheLowerExpert) {
  const Routed<double> r = routed<double>(options(5, 3), {1, 2, 1, 2, 1});
  EXPECT_EQ(r.choices, (std::vector<std::int32_t>{1, 3, 0}));
}

TEST(RouterChoice, SoftmaxGatesByHand) {
  // Scores 1/10, 2/10, 3/10, 4/10.
  const Values logits{0, std::log(2.0), std::log(3.0), std::log(4.0)};
  const Routed<double> renormalised = routed(options(4, 2), logits);
  EXPECT_NEAR(renormalised.scores[2], 0.3, 1e-15);
  EXPECT_NEAR(renormalised.gates[0], 4.0 / 7, 1e-15);
  EXPECT_NEAR(renormalised.gates[1], 3.0 / 7, 1e-15);
  const Routed<double> plain = routed(options(4, 2, RouterScore::kSoftmax, false), logits);
  EXPECT_NEAR(plain.gates[0], 0.4, 1e-15);
  EXPECT_NEAR(plain.gates[1], 0.3, 1e-15);
}

TEST(RouterChoice, SigmoidGatesByHand) {
  // Scores 1/2, 3/4, 1/5.
  const Values logits{0, std::log(3.0), -std::log(4.0)};
  RouterOptions sigmoid = options(3, 2, RouterScore::kSigmoid);
  const Routed<double> renormalised = routed(sigmoid, logits);
  EXPECT_EQ(renormalised.choices, (std::vector<std::int32_t>{1, 0}));
  EXPECT_NEAR(renormalised.scores[2], 0.2, 1e-15);
  EXPECT_NEAR(renormalised.gates[0], 0.6, 1e-15);
  EXPECT_NEAR(renormalised.gates[1], 0.4, 1e-15);
  sigmoid.renormalise = false;
  sigmoid.gate_scale = 2.5;
  const Routed<double> plain = routed(sigmoid, logits);
  EXPECT_NEAR(plain.gates[0], 2.5 * 0.75, 1e-15);
  EXPECT_NEAR(plain.gates[1], 2.5 * 0.5, 1e-15);
}

TEST(RouterChoice, BiasSteersTheChoiceAndItsOrderButNotTheGates) {
  for (const RouterScore score : {RouterScore::kSoftmax, RouterScore::kSigmoid}) {
    const Values bias{0, -2, 0, 0.9};
    const Routed<double> r = routed<double>(options(4, 2, score), {0, 3, 2, 1}, bias);
    EXPECT_EQ(r.choices, (std::vector<std::int32_t>{3, 2}));
    EXPECT_NEAR(r.gates[0], r.scores[3] / (r.scores[3] + r.scores[2]), 1e-15);
  }
}

TEST(RouterChoice, RenormalisedGatesOfATokenSumToTheScale) {
  for (const RouterOptions& o : all_options(6)) {
    const Routed<double> r = routed(o, normal_values(1, 20 * 6));
    for (std::int64_t t = 0; o.renormalise && t < 20; ++t) {
      const auto first = r.gates.begin() + t * o.top_k;
      EXPECT_NEAR(std::accumulate(first, first + o.top_k, 0.0), o.gate_scale, 1e-14) << named(o);
    }
  }
}

TEST(RouterChoice, CountsAreAddedTo) {
  const RouterOptions o = options(8, 3);
  const Values logits = normal_values(2, 50 * 8);
  Routed<double> r = routed(o, logits);
  const std::vector<std::int32_t> once = r.counts;
  route<double>(o, 50, logits, {}, r.scores, r.choices, r.gates, r.counts);
  for (std::int32_t e = 0; e < 8; ++e) {
    const auto expert = static_cast<std::size_t>(e);
    EXPECT_EQ(once[expert], std::count(r.choices.begin(), r.choices.end(), e));
    EXPECT_EQ(r.counts[expert], 2 * once[expert]);
  }
}

TEST(RouterChoice, AgreesWithASortForRandomScoresWithTiesAndBias) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    Random random(seed);
    const auto experts = static_cast<std::int64_t>(1 + random.below(20));
    const auto top_k =
        static_cast<std::int64_t>(1 + random.below(static_cast<std::uint64_t>(experts)));
    Values logits(static_cast<std::size_t>(5 * experts));
    for (double& logit : logits) {
      logit = static_cast<double>(random.below(5));  // many ties
    }
    Values bias(static_cast<std::size_t>(experts));
    for (double& value : bias) {
      value = static_cast<double>(random.below(2));
    }
    const Routed<double> r = routed(options(experts, top_k, RouterScore::kSigmoid), logits, bias);
    for (std::int64_t t = 0; t < 5; ++t) {
      std::vector<std::int32_t> order(static_cast<std::size_t>(experts));
      std::iota(order.begin(), order.end(), 0);
      const auto key = [&](std::int32_t e) {
        return r.scores[static_cast<std::size_t>(t * experts + e)] +
               bias[static_cast<std::size_t>(e)];
      };
      std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return key(a) > key(b); });
      const auto chosen = r.choices.begin() + t * top_k;
      ASSERT_TRUE(std::equal(chosen, chosen + top_k, order.begin())) << "seed " << seed;
    }
  }
}

TEST(RouterChoice, ANanLogitGivesNanGatesAndDistinctExpertsInRange) {
  for (const RouterOptions& o : all_options(6)) {
    for (const bool all_nan : {false, true}) {
      Values logits = normal_values(3, 3 * 6);
      logits[6 + 4] = kNan;
      if (all_nan) {
        std::fill_n(logits.begin() + 6, 6, kNan);
      }
      const Routed<double> r = routed(o, logits);
      const auto first = r.choices.begin() + o.top_k;
      const std::set<std::int32_t> distinct(first, first + o.top_k);
      EXPECT_EQ(std::ssize(distinct), o.top_k) << named(o);
      EXPECT_GE(*distinct.begin(), 0);
      EXPECT_LT(*distinct.rbegin(), 6);
      for (std::int64_t i = 0; i < 3 * o.top_k; ++i) {
        const bool of_nan = i / o.top_k == 1;
        EXPECT_EQ(std::isnan(r.gates[static_cast<std::size_t>(i)]), of_nan) << named(o);
      }
    }
  }
}

TEST(RouterChoice, ANanBiasChoosesDistinctExperts) {
  const Values bias(4, kNan);
  const Routed<double> r = routed<double>(options(4, 3), {0, 3, 1, 2}, bias);
  EXPECT_EQ(r.choices, (std::vector<std::int32_t>{0, 1, 2}));
  EXPECT_TRUE(std::isfinite(r.gates[0]));
}

TEST(RouterChoice, GatesSurviveScoresThatUnderflow) {
  const Values bias{0, 5, 5};
  for (const RouterScore score : {RouterScore::kSoftmax, RouterScore::kSigmoid}) {
    const Routed<double> r = routed<double>(options(3, 2, score), {2000, -1999, -2000}, bias);
    EXPECT_EQ(r.scores[1], 0);
    EXPECT_NEAR(r.gates[0], 1 / (1 + std::exp(-1.0)), 1e-12);
  }
}

TEST(RouterChoice, AMaskedExpertIsTakenLastAndHasNoGate) {
  for (const RouterScore score : {RouterScore::kSoftmax, RouterScore::kSigmoid}) {
    const Routed<double> r = routed<double>(options(3, 3, score), {1, -kInfinity, 0});
    EXPECT_EQ(r.choices, (std::vector<std::int32_t>{0, 2, 1}));
    EXPECT_EQ(r.gates[2], 0);
  }
}

TEST(RouterChoice, OneExpertGetsAll) {
  for (const RouterScore score : {RouterScore::kSoftmax, RouterScore::kSigmoid}) {
    const Routed<double> r = routed<double>(options(1, 1, score), {-3, 7});
    EXPECT_EQ(r.gates, (Values{1, 1}));
    EXPECT_EQ(r.counts, std::vector<std::int32_t>{2});
    EXPECT_EQ(test::backward<double>(options(1, 1, score), r, {5, 6}), (Values{0, 0}));
  }
}

TEST(RouterChoice, NoTokensAreRoutedNowhere) {
  for (const RouterOptions& o : all_options(4)) {
    const Routed<double> r = routed<double>(o, {});
    EXPECT_TRUE(r.choices.empty());
    EXPECT_EQ(r.counts, std::vector<std::int32_t>(4, 0));
    EXPECT_TRUE(test::backward<double>(o, r, {}).empty());
  }
}

TEST(RouterChoice, ImpossibleOptionsAreRefusedWithTheirNumbers) {
  EXPECT_TRUE(check(options(8, 8)).ok());
  EXPECT_THAT(check(options(8, 9)).message(), testing::HasSubstr("9 of 8"));
  EXPECT_THAT(check(options(8, 0)).message(), testing::HasSubstr("0 of 8"));
  EXPECT_THAT(check(options(0, 0)).message(), testing::HasSubstr("at least one expert"));
  for (const double scale : {0.0, -1.0, kNan, kInfinity}) {
    RouterOptions o = options(8, 2);
    o.gate_scale = scale;
    EXPECT_EQ(check(o).code(), StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace muster::parallel
