// The softmax router of moe.h: ours with softmax, renormalised gates and no scale.
#include "router_case.h"

#include <muster/kernels/moe.h>

#include <gtest/gtest.h>

#include <limits>

namespace muster::kernels {
namespace {

using test::backward;
using test::normal_values;
using test::Routed;
using test::routed;

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

TEST(RouterOfMoe, ChoiceGatesAndGradientsAreThoseOfTheSoftmaxRouter) {
  for (const std::int64_t top_k : {1, 3, 24}) {
    for (const bool biased : {false, true}) {
      expect_as_before<float>(9, top_k, biased);
      expect_as_before<double>(9, top_k, biased);
    }
  }
}

}  // namespace
}  // namespace muster::kernels
