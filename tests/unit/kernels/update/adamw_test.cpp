// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/kernels/update/reference.h"

#include <limits>

namespace muster::kernels {
namespace {

using test::cast;
using test::normal_values;
using test::Shard;
using test::widened;

UpdateStep adamw_step(std::int64_t step, double decay = 0.01) {
  return {.learning_rate = 1e-3, .weight_decay = decay, .step = step};
}

UpdateStatistics update(
    Shard& shard,
    const std::vector<float>& gradient,
    const UpdateStep& step,
    const AdamFactors& factors = {}) {
  return adamw_update(shard.tensors(gradient), step, factors);
}

TEST(AdamW, FollowsTheGoldenValues) {
  // p = 1, g = 0.1, -0.2, 0.3, lr 1e-3, betas (0.9, 0.999), epsilon 1e-8, decay 0.01, in double.
  const double golden[] = {0.998990000100, 0.999346113704, 0.998992879178};
  const float gradients[] = {0.1F, -0.2F, 0.3F};
  Shard shard({1});
  for (std::int64_t t = 0; t < 3; ++t) {
    update(shard, {gradients[t]}, adamw_step(t + 1));
    EXPECT_NEAR(static_cast<double>(shard.parameter[0]), golden[t], 1.2e-7);  // one ulp of 1
  }
  EXPECT_NEAR(static_cast<double>(shard.first.values()[0]), 0.0201, 3e-9);
  EXPECT_NEAR(static_cast<double>(shard.second.values()[0]), 1.3994001e-4, 3e-11);
}

TEST(AdamW, DecaysBeforeTheStep) {
  // After the step the decay would also shrink the update: p = (1 - lr)(1 - lr * decay).
  Shard shard({1});
  update(shard, {1}, {.learning_rate = 0.5, .weight_decay = 1, .step = 1}, {.epsilon = 0});
  EXPECT_EQ(shard.parameter[0], 0.0F);  // 1 * (1 - 0.5) - 0.5
}

TEST(AdamW, StaysWithinAMillionthOfDoubleOverAThousandSteps) {
  constexpr std::size_t kCount = 1000;
  Random random(3);
  Shard shard(std::vector<float>(kCount, 1));
  auto wide = widened(shard.parameter);
  for (std::int64_t t = 1; t <= 1000; ++t) {
    std::vector<float> gradient(kCount);
    for (std::size_t i = 0; i < kCount; ++i) {
      gradient[i] = static_cast<float>(random.normal() + 0.3);
      wide[i].adamw(static_cast<double>(gradient[i]), adamw_step(t), {});
    }
    update(shard, gradient, adamw_step(t));
  }
  EXPECT_LT(test::relative_distance(shard.parameter, test::parameters_of(wide)), 1e-6);
}

TEST(AdamW, ResultOfAnElementDoesNotDependOnTheShard) {
  Shard whole(cast<float>(normal_values(4, 100)));
  Shard parts = whole;
  const auto gradient = cast<float>(normal_values(5, 100));
  const std::size_t cuts[] = {0, 1, 18, 50, 97, 100};
  for (std::int64_t t = 1; t <= 3; ++t) {
    update(whole, gradient, adamw_step(t));
    for (std::size_t c = 0; c + 1 < std::size(cuts); ++c) {
      static_cast<void>(
          adamw_update(parts.tensors(gradient, cuts[c], cuts[c + 1]), adamw_step(t), {}));
    }
  }
  EXPECT_EQ(whole, parts);
}

TEST(AdamW, GradientScaleMultipliesFirst) {
  Shard scaled({1});
  Shard plain({1});
  UpdateStep step = adamw_step(1);
  update(plain, {0.25F}, step);
  step.gradient_scale = 0.25;
  update(scaled, {1}, step);
  EXPECT_EQ(scaled, plain);
}

TEST(AdamW, UnderflowOfTheSecondMomentDoesNotBlowUp) {
  // g^2 is 0 in a float, m is not: m / epsilon must not be the step.
  for (const double epsilon : {1e-8, 1e-15, 1e-30, 0.0}) {
    Shard shard({0});
    const UpdateStatistics sums = update(shard, {1e-25F}, adamw_step(1, 0), {.epsilon = epsilon});
    EXPECT_EQ(shard.second.values()[0], 0);
    EXPECT_EQ(shard.parameter[0], 0);
    EXPECT_EQ(sums.update_abs_max, 0);
  }
}

TEST(AdamW, WithoutEpsilonAndGradientNothingMoves) {
  Shard shard({1, 2, 3});
  const UpdateStatistics s =
      update(shard, {0, 0, 0}, {.learning_rate = 0.1, .step = 1}, {.epsilon = 0});
  EXPECT_EQ(shard.parameter, (std::vector<float>{1, 2, 3}));
  EXPECT_EQ(s.update_squared_sum, 0);
  EXPECT_EQ(s.parameter_squared_sum, 14);
}

TEST(AdamW, LargeStepCountsNeedNoCorrection) {
  for (const std::int64_t step : {std::int64_t{100'000'000}, std::int64_t{1} << 60}) {
    Shard shard({1});
    update(shard, {1}, adamw_step(step, 0));
    EXPECT_NEAR(static_cast<double>(shard.parameter[0]), 1 - 1e-3 * 0.1 / std::sqrt(0.001), 1e-6);
  }
}

TEST(AdamW, CorrectionKeepsMovingPastStep256) {
  // A bf16 step counter once stuck at 256 and froze the bias correction.
  Shard at_256({0});
  Shard at_257({0});
  update(at_256, {1}, adamw_step(256, 0));
  update(at_257, {1}, adamw_step(257, 0));
  EXPECT_NE(at_256.parameter, at_257.parameter);
}

TEST(AdamW, ANonfiniteGradientShowsInTheStatisticsAndInNoState) {
  // Skipping is the caller's, before any state is touched; what it missed is withheld and counted.
  // Other elements are as without it.
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    Shard shard(std::vector<float>(40, 1));
    Shard clean = shard;
    std::vector<float> gradient(40, 0.5F);
    update(clean, gradient, adamw_step(1));
    gradient[17] = bad;
    const UpdateStatistics sums = update(shard, gradient, adamw_step(1));
    EXPECT_EQ(shard.first.values()[17], 0);
    EXPECT_EQ(shard.second.values()[17], 0);
    EXPECT_EQ(shard.parameter[17], 1);
    EXPECT_EQ(sums.withheld_count, 1);
    EXPECT_EQ(sums.lost_count, 0);
    EXPECT_FALSE(std::isfinite(sums.gradient_squared_sum));
    EXPECT_FALSE(std::isfinite(sums.momentum_abs_max));
    EXPECT_FALSE(std::isfinite(sums.second_moment_abs_max));
    for (std::size_t i = 0; i < 40; ++i) {
      if (i != 17) {
        EXPECT_EQ(shard.parameter[i], clean.parameter[i]);
      }
    }
  }
}

TEST(AdamW, AcceptsAnEmptyTensor) {
  Shard shard(std::vector<float>{});
  EXPECT_EQ(update(shard, {}, adamw_step(1)).parameter_squared_sum, 0);
}

}  // namespace
}  // namespace muster::kernels
