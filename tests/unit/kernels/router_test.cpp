#include "numbers.h"

#include <muster/kernels/moe.h>

#include <limits>
#include <numeric>
#include <set>

namespace muster::kernels {
namespace {

using test::dot;
using test::expect_gradient;
using test::normal_values;
using test::Values;

struct Result {
  Routing routing;
  Values scores;
  Values gates;
};

Result route(
    const Values& logits, std::int64_t experts, std::int64_t top_k, const double* bias = nullptr) {
  const std::int64_t tokens = std::ssize(logits) / experts;
  Result r{{}, Values(logits.size()), Values(static_cast<std::size_t>(tokens * top_k))};
  router_forward(
      logits.data(), bias, tokens, experts, top_k, r.scores.data(), r.gates.data(), r.routing);
  return r;
}

TEST(Router, TakesTheLargestScoresAndRenormalises) {
  const Result r = route({0, 3, 1, 2}, 4, 2);
  EXPECT_EQ(r.routing.expert, (std::vector<std::int32_t>{1, 3}));
  EXPECT_NEAR(std::accumulate(r.scores.begin(), r.scores.end(), 0.0), 1, 1e-15);
  EXPECT_NEAR(r.gates[0], r.scores[1] / (r.scores[1] + r.scores[3]), 1e-15);
  EXPECT_NEAR(r.gates[0] + r.gates[1], 1, 1e-15);
  EXPECT_EQ(r.routing.counts, (std::vector<std::int64_t>{0, 1, 0, 1}));
}

TEST(Router, TiesGoToTheLowerExpert) {
  EXPECT_EQ(route({1, 1, 1, 1}, 4, 3).routing.expert, (std::vector<std::int32_t>{0, 1, 2}));
}

TEST(Router, BiasSteersTheChoiceButNotTheGates) {
  const double bias[] = {0, -1, 0, 0};
  const Result r = route({0, 3, 1, 2}, 4, 2, bias);
  EXPECT_EQ(r.routing.expert, (std::vector<std::int32_t>{3, 2}));
  EXPECT_NEAR(r.gates[0], r.scores[3] / (r.scores[3] + r.scores[2]), 1e-15);
}

TEST(Router, CountsAddUpOverTokens) {
  const Result r = route(normal_values(1, 50 * 8), 8, 3);
  EXPECT_EQ(
      std::accumulate(r.routing.counts.begin(), r.routing.counts.end(), std::int64_t{0}), 150);
  for (std::int64_t e = 0; e < 8; ++e) {
    EXPECT_EQ(
        r.routing.counts[static_cast<std::size_t>(e)],
        std::count(r.routing.expert.begin(), r.routing.expert.end(), e));
  }
}

TEST(Router, GatesSurviveScoresThatUnderflow) {
  // The bias forces two experts whose softmax scores are exactly 0.
  const double bias[] = {0, 5, 5};
  const Result r = route({2000, 1, 0}, 3, 2, bias);
  EXPECT_EQ(r.scores[1], 0);
  EXPECT_NEAR(r.gates[0], 1 / (1 + std::exp(-1.0)), 1e-15);
}

TEST(Router, NanLogitsStillGiveDistinctExpertsInRange) {
  const Result r = route(Values(6, std::numeric_limits<double>::quiet_NaN()), 6, 3);
  const std::set<std::int32_t> distinct(r.routing.expert.begin(), r.routing.expert.end());
  EXPECT_EQ(distinct.size(), 3U);
  EXPECT_GE(*distinct.begin(), 0);
  EXPECT_LT(*distinct.rbegin(), 6);
  EXPECT_TRUE(std::isnan(r.gates[0]));
}

TEST(Router, GradientAgreesWithDifferences) {
  for (const std::int64_t top_k : {1, 2, 5}) {
    Values logits = normal_values(2, 4 * 5);
    const Values dgates = normal_values(3, 4 * top_k);
    const Result r = route(logits, 5, top_k);
    Values dlogits(logits.size(), 99);
    router_backward(r.routing, r.scores.data(), r.gates.data(), dgates.data(), dlogits.data());
    expect_gradient(logits, dlogits, [&] { return dot(route(logits, 5, top_k).gates, dgates); });
  }
}

TEST(Router, ReusesItsRouting) {
  Result r = route(normal_values(4, 9 * 4), 4, 2);
  const Values logits{0, 1};
  router_forward<double>(
      logits.data(), nullptr, 1, 2, 1, r.scores.data(), r.gates.data(), r.routing);
  EXPECT_EQ(r.routing.expert, (std::vector<std::int32_t>{1}));
  EXPECT_EQ(r.routing.counts, (std::vector<std::int64_t>{0, 1}));
}

TEST(Router, AcceptsNoTokens) {
  const Result r = route({}, 4, 2);
  EXPECT_TRUE(r.routing.expert.empty());
  EXPECT_EQ(r.routing.counts, std::vector<std::int64_t>(4, 0));
}

}  // namespace
}  // namespace muster::kernels
