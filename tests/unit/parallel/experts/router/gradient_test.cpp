// SPDX-License-Identifier: Apache-2.0
// Gradients of gates and of every loss against differences.
#include "tests/unit/parallel/experts/router/case.h"

#include <gtest/gtest.h>

namespace muster::parallel {
namespace {

using test::all_options;
using test::backward;
using test::dot;
using test::expect_gradient;
using test::named;
using test::normal_values;
using test::Routed;
using test::routed;
using test::Values;

constexpr std::int64_t kTokens = 6;
constexpr std::int64_t kExperts = 5;

TEST(RouterGradient, OfTheGatesAgreesWithDifferences) {
  for (const RouterOptions& o : all_options(kExperts)) {
    for (const bool biased : {false, true}) {
      SCOPED_TRACE(named(o) + (biased ? ", biased" : ""));
      Values logits = normal_values(1, kTokens * kExperts);
      const Values bias = biased ? normal_values(2, kExperts) : Values();
      const Values dgates = normal_values(3, kTokens * o.top_k);
      const Values dlogits = backward(o, routed(o, logits, bias), dgates);
      expect_gradient(logits, dlogits, [&] { return dot(routed(o, logits, bias).gates, dgates); });
    }
  }
}

TEST(RouterGradient, IsThatOfTheUnderflowedGatesToo) {
  const RouterOptions o{2, 2, RouterScore::kSigmoid, true, 1.5};
  Values logits{-800, -801};
  const Values dgates{1, -2};
  const Values dlogits = backward(o, routed(o, logits), dgates);
  // Sums near 800 lose three digits to the step.
  expect_gradient(
      logits, dlogits, [&] { return dot(routed(o, logits).gates, dgates); }, 1e-6);
}

TEST(RouterGradient, OfTheSwitchLossAgreesWithDifferences) {
  for (const RouterOptions& o : all_options(kExperts)) {
    SCOPED_TRACE(named(o));
    Values logits = normal_values(4, kTokens * kExperts);
    const Values counts{9, 0, 3, 4, 2};  // of a larger group: constants
    const auto loss = [&](double scale, std::span<double> dlogits) {
      const Values scores = routed(o, logits).scores;
      return switch_loss<double>(o, kTokens, scores, counts, 11, scale, dlogits);
    };
    Values dlogits(logits.size(), 0.25);  // added to
    loss(3, dlogits);
    for (double& value : dlogits) {
      value -= 0.25;
    }
    expect_gradient(logits, dlogits, [&] { return 3 * loss(1, {}); });
  }
}

TEST(RouterGradient, OfTheSequenceLossAgreesWithDifferences) {
  for (const RouterOptions& o : all_options(kExperts)) {
    SCOPED_TRACE(named(o));
    Values logits = normal_values(5, kTokens * kExperts);
    const std::vector<std::int32_t> choices = routed(o, logits).choices;  // constants
    const auto loss = [&](double scale, std::span<double> dlogits) {
      const Values scores = routed(o, logits).scores;
      return sequence_loss<double>(o, kTokens, kTokens / 2, scores, choices, scale, dlogits);
    };
    Values dlogits(logits.size(), -0.5);
    loss(2, dlogits);
    for (double& value : dlogits) {
      value += 0.5;
    }
    expect_gradient(logits, dlogits, [&] { return 2 * loss(1, {}); });
  }
}

TEST(RouterGradient, OfTheZLossAgreesWithDifferences) {
  Values logits = normal_values(6, kTokens * kExperts, 3);
  const auto loss = [&](double scale, std::span<double> dlogits) {
    return router_z_loss<double>(kTokens, kExperts, logits, scale, dlogits);
  };
  Values dlogits(logits.size(), 1);
  loss(0.5, dlogits);
  for (double& value : dlogits) {
    value -= 1;
  }
  expect_gradient(logits, dlogits, [&] { return 0.5 * loss(1, {}); });
}

TEST(RouterGradient, InFp32IsThatInFp64UpToRounding) {
  for (const RouterOptions& o : all_options(kExperts)) {
    SCOPED_TRACE(named(o));
    const auto logits = test::cast<float>(normal_values(7, kTokens * kExperts));
    const auto dgates = test::cast<float>(normal_values(8, kTokens * o.top_k));
    const Routed<float> narrow = routed(o, logits);
    const Routed<double> wide = routed(o, test::cast<double>(logits));
    ASSERT_EQ(narrow.choices, wide.choices);
    // A dozen roundings of numbers near 1.
    EXPECT_LT(test::distance(narrow.gates, wide.gates), 1e-6);
    const auto expected = backward(o, wide, test::cast<double>(dgates));
    EXPECT_LT(test::distance(backward(o, narrow, dgates), expected), 1e-6);
    std::vector<float> of_loss(logits.size());
    Values of_wide_loss(logits.size());
    const double z = router_z_loss<float>(kTokens, kExperts, logits, 1, of_loss);
    const double wide_z =
        router_z_loss<double>(kTokens, kExperts, test::cast<double>(logits), 1, of_wide_loss);
    EXPECT_NEAR(z, wide_z, 1e-6 * (1 + wide_z));
    EXPECT_LT(test::distance(of_loss, of_wide_loss), 1e-6);
  }
}

}  // namespace
}  // namespace muster::parallel
