// SPDX-License-Identifier: Apache-2.0
// Every rule against its formula in double, and the option matrix.
#include "tests/unit/kernels/update/reference.h"

#include <muster/common/check.h>

namespace muster::kernels {
namespace {

using test::cast;
using test::normal_values;
using test::relative_distance;
using test::Shard;
using test::Values;
using test::WideElement;
using test::widened;

constexpr std::size_t kCount = 600;  // two blocks and a part of one
constexpr std::int64_t kSteps = 20;

UpdateStep rule_step(std::int64_t t) {
  return {.learning_rate = 1e-2, .weight_decay = 0.1, .gradient_scale = 0.5, .step = t, .seed = 9};
}

std::vector<float> rule_gradient(std::int64_t t, std::size_t count = kCount) {
  return cast<float>(
      normal_values(static_cast<std::uint64_t>(100 + t), static_cast<std::int64_t>(count)));
}

std::vector<float> initial_values() {
  return cast<float>(normal_values(31, kCount));
}

// Twenty steps of both; 1e-6 is some ten roundings of a float.
template <typename Update, typename Reference>
void expect_rule(Update update, Reference reference) {
  Shard shard(initial_values());
  auto wide = widened(shard.parameter);
  for (std::int64_t t = 1; t <= kSteps; ++t) {
    const auto gradient = rule_gradient(t);
    static_cast<void>(update(shard.tensors(gradient), rule_step(t)));
    for (std::size_t i = 0; i < kCount; ++i) {
      reference(wide[i], 0.5 * static_cast<double>(gradient[i]), rule_step(t));
    }
  }
  EXPECT_LT(relative_distance(shard.parameter, test::parameters_of(wide)), 1e-6);
}

TEST(UpdateRules, SgdFollowsItsFormula) {
  expect_rule(sgd_update, [](WideElement& e, double g, const UpdateStep& s) { e.sgd(g, s); });
}

TEST(UpdateRules, MomentumFollowsItsFormulaWithAndWithoutNesterov) {
  for (const bool nesterov : {false, true}) {
    const MomentumFactors factors{.momentum = 0.9, .nesterov = nesterov};
    expect_rule(
        [&](const UpdateTensors& t, const UpdateStep& s) { return momentum_update(t, s, factors); },
        [&](WideElement& e, double g, const UpdateStep& s) { e.momentum(g, s, factors); });
  }
}

TEST(UpdateRules, RmsPropFollowsItsFormula) {
  expect_rule(
      [](const UpdateTensors& t, const UpdateStep& s) { return rmsprop_update(t, s, {}); },
      [](WideElement& e, double g, const UpdateStep& s) { e.rmsprop(g, s, {}); });
}

TEST(UpdateRules, AdamCouplesItsDecayWithTheMoments) {
  expect_rule(
      [](const UpdateTensors& t, const UpdateStep& s) { return adam_update(t, s, {}); },
      [](WideElement& e, double g, const UpdateStep& s) { e.adam(g, s, {}); });
}

TEST(UpdateRules, AdamWDecaysApartFromTheMoments) {
  expect_rule(
      [](const UpdateTensors& t, const UpdateStep& s) { return adamw_update(t, s, {}); },
      [](WideElement& e, double g, const UpdateStep& s) { e.adamw(g, s, {}); });
}

TEST(UpdateRules, AdamAndAdamWDifferOnlyByDecay) {
  Shard coupled(initial_values());
  Shard decoupled(initial_values());
  const auto gradient = rule_gradient(1);
  UpdateStep step = rule_step(1);
  step.weight_decay = 0;
  static_cast<void>(adam_update(coupled.tensors(gradient), step, {}));
  static_cast<void>(adamw_update(decoupled.tensors(gradient), step, {}));
  EXPECT_EQ(coupled, decoupled);
  static_cast<void>(adam_update(coupled.tensors(gradient), rule_step(2), {}));
  static_cast<void>(adamw_update(decoupled.tensors(gradient), rule_step(2), {}));
  EXPECT_NE(coupled.first, decoupled.first);
}

TEST(UpdateRules, RmsPropIsAdamWithoutMomentumAndCorrection) {
  // beta1 = 0, and t so large that the correction of v is 1.
  Shard rmsprop(initial_values());
  Shard adam(initial_values());
  const auto gradient = rule_gradient(1);
  UpdateStep step = rule_step(1'000'000);
  static_cast<void>(rmsprop_update(rmsprop.tensors(gradient), step, {.alpha = 0.9}));
  static_cast<void>(adam_update(adam.tensors(gradient), step, {.beta1 = 0, .beta2 = 0.9}));
  EXPECT_LT(relative_distance(rmsprop.parameter, cast<double>(adam.parameter)), 1e-7);
}

// ---- Muon --------------------------------------------------------------------------------------

// In KellerJordan/Muon momentum was once ignored without Nesterov: every combination is tested.
TEST(MuonMomentum, FollowsItsFormulaInEveryForm) {
  for (const bool nesterov : {false, true}) {
    for (const bool ema : {false, true}) {
      const MuonMomentumFactors factors{.momentum = 0.95, .nesterov = nesterov, .ema = ema};
      Shard shard(initial_values());
      std::vector<WideElement> wide(kCount);
      std::vector<float> direction(kCount);
      Values expected(kCount);
      for (std::int64_t t = 1; t <= kSteps; ++t) {
        const auto gradient = rule_gradient(t);
        static_cast<void>(
            muon_momentum_update(shard.tensors(gradient), rule_step(t), factors, direction.data()));
        for (std::size_t i = 0; i < kCount; ++i) {
          expected[i] = wide[i].muon(0.5 * static_cast<double>(gradient[i]), factors);
        }
      }
      EXPECT_LT(relative_distance(direction, expected), 1e-6) << nesterov << ema;
      EXPECT_EQ(shard.parameter, initial_values());
    }
  }
}

TEST(MuonMomentum, FormsDifferByTheFactorTheyShouldDifferBy) {
  // Both in one figure: heavy-ball momentum is 1 / (1 - mu) times the average.
  Shard heavy(initial_values());
  Shard average(initial_values());
  std::vector<float> u(kCount);
  std::vector<float> w(kCount);
  for (std::int64_t t = 1; t <= kSteps; ++t) {
    const auto gradient = rule_gradient(t);
    static_cast<void>(muon_momentum_update(heavy.tensors(gradient), rule_step(t), {}, u.data()));
    static_cast<void>(
        muon_momentum_update(average.tensors(gradient), rule_step(t), {.ema = true}, w.data()));
  }
  Values scaled;
  for (const float value : w) {
    scaled.push_back(20 * static_cast<double>(value));
  }
  EXPECT_LT(relative_distance(u, scaled), 1e-6);
}

TEST(MuonMomentum, TheDirectionIsNoAliasOfTheState) {
  // In torch a bf16 momentum buffer was once normalised in place.
  for (const StateType type : test::kStateTypes) {
    Shard shard(initial_values(), type);
    const auto gradient = rule_gradient(1);
    std::vector<float> direction(kCount);
    static_cast<void>(muon_momentum_update(
        shard.tensors(gradient), rule_step(1), {.nesterov = false}, direction.data()));
    const auto kept = shard.first;
    std::fill(direction.begin(), direction.end(), 1e9F);
    EXPECT_EQ(shard.first, kept);
  }
  Shard shard(initial_values());
  const auto gradient = rule_gradient(1);
  const UpdateTensors tensors = shard.tensors(gradient);
  EXPECT_THROW(
      static_cast<void>(
          muon_momentum_update(tensors, rule_step(1), {}, static_cast<float*>(tensors.first.data))),
      CheckFailure);
}

TEST(MuonApply, DecaysByTheUnscaledRateAndMovesByTheScaledOne) {
  Shard shard({2.0F, -4.0F});
  const std::vector<float> orthogonal{1.0F, 0.5F};
  const UpdateStatistics sums = muon_apply_update(
      shard.tensors(orthogonal),
      {.learning_rate = 0.25, .weight_decay = 0.5, .gradient_scale = 100},
      3,
      orthogonal.data());
  // 2 (1 - 0.125) - 0.75, -4 (1 - 0.125) - 0.375: the gradient's scale does not touch O.
  EXPECT_EQ(shard.parameter, (std::vector<float>{1.0F, -3.875F}));
  EXPECT_DOUBLE_EQ(sums.update_squared_sum, 0.75 * 0.75 + 0.375 * 0.375);
  EXPECT_EQ(sums.update_abs_max, 0.75);
}

// ---- guards ------------------------------------------------------------------------------------

TEST(UpdateRules, RefuseAStateThatIsNotThere) {
  std::vector<float> values(4);
  UpdateTensors tensors;
  tensors.parameter = values.data();
  tensors.gradient = values.data();
  tensors.count = 4;
  EXPECT_THROW(static_cast<void>(adamw_update(tensors, {}, {})), CheckFailure);
  EXPECT_THROW(static_cast<void>(momentum_update(tensors, {}, {})), CheckFailure);
  EXPECT_THROW(static_cast<void>(rmsprop_update(tensors, {}, {})), CheckFailure);
  EXPECT_NO_THROW(static_cast<void>(sgd_update(tensors, {})));
}

TEST(UpdateRules, RefuseAnEightBitShardThatBeginsInsideABlock) {
  Shard shard(initial_values(), StateType::kInt8Block, StateType::kInt8Block);
  const auto gradient = rule_gradient(1);
  UpdateTensors tensors = shard.tensors(gradient);
  tensors.first_index = 100;
  EXPECT_THROW(static_cast<void>(adamw_update(tensors, {}, {})), CheckFailure);
}

TEST(UpdateRules, RefuseToCountStepsFromZero) {
  Shard shard(initial_values());
  const auto gradient = rule_gradient(1);
  EXPECT_THROW(
      static_cast<void>(adamw_update(shard.tensors(gradient), {.step = 0}, {})), CheckFailure);
}

}  // namespace
}  // namespace muster::kernels
