// Gradients of gates and of every loss against differences, and the softmax router of moe.h.
#include "router_case.h"

#include <muster/kernels/moe.h>

#include <gtest/gtest.h>

#include <limits>

namespace muster::kernels {
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

// The choice, gates and gradients of the router that came before, bit for bit.
template <typename T>
void expect_as_before(std::uint64_t seed, std::int64_t top_k, bool biased) {
  constexpr std::int64_t kMany = 24;
  const RouterOptions o{kMany, top_k, RouterScore::kSoftmax, true, 1.0};
  auto logits = test::cast<T>(normal_values(seed, 40 * kMany, 2));
  std::fill_n(logits.begin() + kMany, kMany, std::numeric_limits<T>::quiet_NaN());
  std::fill_n(logits.begin() + 2 * kMany, kMany, T{1});
  const auto bias = biased ? test::cast<T>(normal_values(seed + 1, kMany, 0.1)) : std::vector<T>();
  const auto dgates = test::cast<T>(normal_values(seed + 2, 40 * top_k));
  const Routed<T> now = routed(o, logits, bias);
  Routing routing;
  std::vector<T> scores(logits.size());
  std::vector<T> gates(now.gates.size());
  router_forward<T>(
      logits.data(),
      biased ? bias.data() : nullptr,
      40,
      kMany,
      top_k,
      scores.data(),
      gates.data(),
      routing);
  const auto same = [](const std::vector<T>& a, const std::vector<T>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](T x, T y) {
      return x == y || (std::isnan(x) && std::isnan(y));
    });
  };
  EXPECT_EQ(now.choices, routing.expert);
  EXPECT_TRUE(std::equal(now.counts.begin(), now.counts.end(), routing.counts.begin()));
  EXPECT_TRUE(same(now.scores, scores));
  EXPECT_TRUE(same(now.gates, gates));
  std::vector<T> before(logits.size());
  router_backward<T>(routing, scores.data(), gates.data(), dgates.data(), before.data());
  EXPECT_TRUE(same(backward(o, now, dgates), before));
}

TEST(RouterGradient, ChoiceGatesAndGradientsAreThoseOfTheSoftmaxRouter) {
  for (const std::int64_t top_k : {1, 3, 24}) {
    for (const bool biased : {false, true}) {
      expect_as_before<float>(9, top_k, biased);
      expect_as_before<double>(9, top_k, biased);
    }
  }
}

}  // namespace
}  // namespace muster::kernels
