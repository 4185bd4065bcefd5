// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/parallel/experts/layer/case.h"

#include <muster/comm/backends.h>
#include <muster/parallel/experts/synthetic_routing.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

namespace muster::parallel {
namespace {

using ::testing::HasSubstr;

// fp32 sums of some hundred products of numbers up to 1 against fp64.
constexpr double kTolerance = 2e-5;
// Rows, activations and partial sums are rounded to 8 bits several times in between.
constexpr double kTolerance16 = 4e-2;

struct Family {
  const char* name;
  std::function<int(const LayerCase&, int rank, std::int64_t token, int choice)> route;
};

// Choices of a token differ in all families but the one named for it.
std::vector<Family> families() {
  return {
      {"even",
       [](const LayerCase& c, int rank, std::int64_t token, int choice) {
         return static_cast<int>((rank * 3 + token * 5 + choice) % c.experts);
       }},
      {"everyone to one expert first",
       [](const LayerCase&, int, std::int64_t, int choice) { return choice; }},
      {"everything to one expert",
       [](const LayerCase& c, int, std::int64_t, int) { return c.experts - 1; }},
      {"one home",
       [](const LayerCase& c, int, std::int64_t token, int choice) {
         const int local = c.experts / c.ranks;
         return local + static_cast<int>((token + choice) % local);
       }},
      {"only at home",
       [](const LayerCase& c, int rank, std::int64_t token, int choice) {
         const int local = c.experts / c.ranks;
         return rank * local + static_cast<int>((token + choice) % local);
       }},
      {"only elsewhere",
       [](const LayerCase& c, int rank, std::int64_t token, int choice) {
         const int local = c.experts / c.ranks;
         return ((rank + 1) % c.ranks) * local + static_cast<int>((token + choice) % local);
       }},
      {"half of the tokens to one expert",
       [](const LayerCase& c, int rank, std::int64_t token, int choice) {
         return choice == 0 && token % 2 == 0
                    ? 0
                    : 1 + static_cast<int>((token + rank + choice) % (c.experts - 1));
       }},
  };
}

LayerCase make_case(const Family& family) {
  LayerCase layer;
  layer.ranks = 4;
  layer.experts = 8;
  layer.top_k = 2;
  layer.tokens = {13, 13, 13, 13};
  // `layer` travels by value into the function that its copy holds.
  layer.route = [family, copy = layer](int rank, std::int64_t token, int choice) {
    return family.route(copy, rank, token, choice);
  };
  return layer;
}

Deviation deviation_of(const LayerCase& layer, LayerKind kind) {
  const LayerInputs inputs = make_inputs(layer);
  Status status;
  const LayerResult result = run_layer(layer, inputs, kind, status);
  EXPECT_TRUE(status.ok()) << status.to_string();
  return deviation(result, dense_reference(layer, inputs));
}

TEST(ExpertLayer, HasTheOutputsAndGradientsOfTheDenseOracleForEveryRoutingFamily) {
  for (const Family& family : families()) {
    const Deviation worst = deviation_of(make_case(family), LayerKind::kBalanced);
    EXPECT_LT(worst.relative, kTolerance) << family.name << ": " << worst.where;
  }
}

TEST(ExpertLayer, TheOrdinaryAllToAllHasThemToo) {
  for (const Family& family : families()) {
    const Deviation worst = deviation_of(make_case(family), LayerKind::kAllToAll);
    EXPECT_LT(worst.relative, kTolerance) << family.name << ": " << worst.where;
  }
}

TEST(ExpertLayer, InBf16StaysWithinItsRounding) {
  for (const Family& family : families()) {
    LayerCase layer = make_case(family);
    layer.type = DType::kBFloat16;
    layer.hidden = 64;
    for (const EpNumerics numerics : {EpNumerics::kPlain, EpNumerics::kWireExact}) {
      layer.numerics = numerics;
      const Deviation worst = deviation_of(layer, LayerKind::kBalanced);
      EXPECT_LT(worst.relative, kTolerance16) << family.name << ": " << worst.where;
    }
  }
}

TEST(ExpertLayer, TakesTokensThatDifferPerRankAndRanksWithoutAny) {
  for (const Family& family : families()) {
    LayerCase layer = make_case(family);
    layer.tokens = {0, 21, 3, 8};
    EXPECT_LT(deviation_of(layer, LayerKind::kBalanced).relative, kTolerance) << family.name;
    EXPECT_LT(deviation_of(layer, LayerKind::kAllToAll).relative, kTolerance) << family.name;
  }
}

TEST(ExpertLayer, OfNoTokensAtAllHasNoGradients) {
  LayerCase layer = make_case(families().front());
  layer.tokens = {0, 0, 0, 0};
  EXPECT_EQ(deviation_of(layer, LayerKind::kBalanced).relative, 0.0);
}

TEST(ExpertLayer, PaddingCompactRowsAndToleranceChangeNoResult) {
  for (const Family& family : families()) {
    LayerCase padded = make_case(family);
    padded.padding = 8;
    EXPECT_LT(deviation_of(padded, LayerKind::kBalanced).relative, kTolerance) << family.name;
    LayerCase compact = make_case(family);
    compact.compact = true;
    EXPECT_LT(deviation_of(compact, LayerKind::kBalanced).relative, kTolerance) << family.name;
    LayerCase tolerant = make_case(family);
    tolerant.balance.mode = EpBalanceMode::kTolerant;
    tolerant.balance.tolerance = 0.25;
    EXPECT_LT(deviation_of(tolerant, LayerKind::kBalanced).relative, kTolerance) << family.name;
    LayerCase unbalanced = make_case(family);
    unbalanced.balance.mode = EpBalanceMode::kNone;
    EXPECT_LT(deviation_of(unbalanced, LayerKind::kBalanced).relative, kTolerance) << family.name;
  }
}

TEST(ExpertLayer, RanksOfUnequalSpeedHaveTheSameResults) {
  for (const Family& family : families()) {
    LayerCase layer = make_case(family);
    layer.balance.speeds = {1.1, 1.0, 0.95, 0.95};
    EXPECT_LT(deviation_of(layer, LayerKind::kBalanced).relative, kTolerance) << family.name;
  }
}

TEST(ExpertLayer, RefusesAPlanWithMoreForeignExpertsThanSlotsBeforeAnythingIsComputed) {
  // A fast rank without own rows needs experts of three homes; it has slots for one.
  LayerCase layer = make_case(
      {"nothing of rank 0", [](const LayerCase& c, int rank, std::int64_t token, int choice) {
         const int local = c.experts / c.ranks;
         return local + static_cast<int>((rank + token * 5 + choice) % (c.experts - local));
       }});
  layer.balance.speeds = {4, 1, 1, 1};
  layer.balance.homes_max = 3;
  const LayerInputs inputs = make_inputs(layer);
  Status status;
  static_cast<void>(run_layer(layer, inputs, LayerKind::kBalanced, status));
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("homes_max"));
}

TEST(ExpertLayer, OfOneRankNeedsNobody) {
  LayerCase layer = make_case(families().front());
  layer.ranks = 1;
  layer.tokens = {17};
  EXPECT_LT(deviation_of(layer, LayerKind::kBalanced).relative, kTolerance);
}

TEST(ExpertLayer, GivesTheSameBitsOnEveryRun) {
  const LayerCase layer = make_case(families().back());
  const LayerInputs inputs = make_inputs(layer);
  Status status;
  const LayerResult first = run_layer(layer, inputs, LayerKind::kBalanced, status);
  for (int run = 0; run < 5; ++run) {
    const LayerResult again = run_layer(layer, inputs, LayerKind::kBalanced, status);
    EXPECT_EQ(first.y, again.y);
    EXPECT_EQ(first.dx, again.dx);
    EXPECT_EQ(first.dgates, again.dgates);
    EXPECT_EQ(first.gate_gradient, again.gate_gradient);
    EXPECT_EQ(first.down_gradient, again.down_gradient);
  }
  EXPECT_TRUE(status.ok()) << status.to_string();
}

TEST(ExpertLayer, RefusesAnExpertThatDoesNotExistOnAllRanks) {
  LayerCase layer = make_case(families().front());
  LayerInputs inputs = make_inputs(layer);
  inputs.choices[2][5] = layer.experts;
  for (const LayerKind kind : {LayerKind::kBalanced}) {
    Status status;
    static_cast<void>(run_layer(layer, inputs, kind, status));
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(status.message(), HasSubstr("layer 0"));
  }
}

// --- synthetic routing ---

double maxvio_of(const SyntheticRouting& routing, int experts, int top_k) {
  std::vector<std::int32_t> choices(static_cast<std::size_t>(8000 * top_k));
  routing.draw(3, 17, choices);
  std::vector<double> counts(static_cast<std::size_t>(experts));
  for (const std::int32_t expert : choices) {
    ++counts[static_cast<std::size_t>(expert)];
  }
  return *std::max_element(counts.begin(), counts.end()) * experts /
             static_cast<double>(choices.size()) -
         1;
}

TEST(SyntheticRouting, HitsTheWantedMaxvio) {
  for (const double wanted : {1.0, 2.0, 5.0, 10.0, 20.0}) {
    const auto routing = SyntheticRouting::create(128, 4, wanted, 7);
    ASSERT_TRUE(routing.ok());
    EXPECT_NEAR(maxvio_of(*routing, 128, 4), wanted, 0.1 * wanted);
  }
}

TEST(SyntheticRouting, ChoosesDifferentExpertsPerTokenAndRepeatsItself) {
  const auto routing = SyntheticRouting::create(16, 4, 2.5, 7);
  ASSERT_TRUE(routing.ok());
  std::vector<std::int32_t> choices(400);
  routing->draw(1, 2, choices);
  for (std::size_t token = 0; token < 100; ++token) {
    std::vector<std::int32_t> chosen(
        choices.begin() + static_cast<std::ptrdiff_t>(4 * token),
        choices.begin() + static_cast<std::ptrdiff_t>(4 * token + 4));
    std::sort(chosen.begin(), chosen.end());
    EXPECT_EQ(std::unique(chosen.begin(), chosen.end()), chosen.end());
  }
  std::vector<std::int32_t> again(400);
  routing->draw(1, 2, again);
  EXPECT_EQ(choices, again);
  routing->draw(1, 3, again);
  EXPECT_NE(choices, again);
}

TEST(SyntheticRouting, RefusesASkewThatCannotBe) {
  const auto routing = SyntheticRouting::create(16, 4, 3.5, 7);
  ASSERT_FALSE(routing.ok());
  EXPECT_THAT(routing.status().message(), HasSubstr("between 0 and 3 with 4 of 16 experts"));
}

TEST(SyntheticRouting, GatesOfDrawnExpertsAreTheirScoresOrEqualWhereThoseUnderflowed) {
  const std::vector<float> scores{0.5F, 0.125F, 0.375F, 1.0F, 0.0F, 0.0F};
  const std::vector<std::int32_t> choices{2, 1, 1, 2};
  std::vector<float> gates(4, -1.0F);
  synthetic_gates(2, scores, choices, gates);
  EXPECT_EQ(gates, (std::vector<float>{0.75F, 0.25F, 0.5F, 0.5F}));
}

}  // namespace
}  // namespace muster::parallel
