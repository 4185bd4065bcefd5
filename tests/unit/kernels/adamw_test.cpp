#include "numbers.h"

#include <muster/kernels/optimizer_kernels.h>

namespace muster::kernels {
namespace {

using test::cast;
using test::normal_values;
using test::Values;

struct State {
  explicit State(std::vector<float> initial)
      : parameter(std::move(initial)), m(parameter.size(), 0), v(parameter.size(), 0) {}

  UpdateStatistics update(const std::vector<float>& gradient, const AdamWStep& step) {
    return adamw_update(parameter, gradient, m, v, step);
  }

  std::vector<float> parameter;
  std::vector<float> m;
  std::vector<float> v;
};

AdamWStep step_at(std::int64_t step, double decay = 0.01) {
  return {.learning_rate = 1e-3, .weight_decay = decay, .step = step};
}

// torch.optim.AdamW in double.
struct WideState {
  double p{1};
  double m{0};
  double v{0};

  void update(double g, const AdamWStep& s) {
    const auto t = static_cast<double>(s.step);
    p *= 1 - s.learning_rate * s.weight_decay;
    m = s.beta1 * m + (1 - s.beta1) * g;
    v = s.beta2 * v + (1 - s.beta2) * g * g;
    p -= s.learning_rate * (m / (1 - std::pow(s.beta1, t))) /
         (std::sqrt(v / (1 - std::pow(s.beta2, t))) + s.epsilon);
  }
};

TEST(AdamW, FollowsTheGoldenValues) {
  // p = 1, g = 0.1, -0.2, 0.3, lr 1e-3, betas (0.9, 0.999), epsilon 1e-8, decay 0.01, in double.
  const double golden[] = {0.998990000100, 0.999346113704, 0.998992879178};
  const float gradients[] = {0.1F, -0.2F, 0.3F};
  State state({1});
  for (std::int64_t t = 0; t < 3; ++t) {
    state.update({gradients[t]}, step_at(t + 1));
    EXPECT_NEAR(static_cast<double>(state.parameter[0]), golden[t], 1.2e-7);  // one ulp of 1
  }
  EXPECT_NEAR(static_cast<double>(state.m[0]), 0.0201, 3e-9);
  EXPECT_NEAR(static_cast<double>(state.v[0]), 1.3994001e-4, 3e-11);
}

TEST(AdamW, DecaysBeforeTheStep) {
  // After the step the decay would also shrink the update: p = (1 - lr)(1 - lr * decay).
  const AdamWStep step{.learning_rate = 0.5, .epsilon = 0, .weight_decay = 1, .step = 1};
  State state({1});
  state.update({1}, step);
  EXPECT_EQ(state.parameter[0], 0.0F);  // 1 * (1 - 0.5) - 0.5
}

TEST(AdamW, StaysCloseToDoubleOverAThousandSteps) {
  Random random(3);
  State state(std::vector<float>(19, 1));
  std::vector<WideState> wide(19);
  for (std::int64_t t = 1; t <= 1000; ++t) {
    std::vector<float> gradient(19);
    for (std::size_t i = 0; i < wide.size(); ++i) {
      gradient[i] = static_cast<float>(random.normal() + 0.3);
      wide[i].update(static_cast<double>(gradient[i]), step_at(t));
    }
    state.update(gradient, step_at(t));
  }
  for (std::size_t i = 0; i < wide.size(); ++i) {
    // 1000 roundings of half an ulp of 1, as a random walk: about 1e-6.
    EXPECT_NEAR(static_cast<double>(state.parameter[i]), wide[i].p, 4e-6);
  }
}

TEST(AdamW, ResultOfAnElementDoesNotDependOnTheShard) {
  const auto initial = cast<float>(normal_values(4, 100));
  const auto gradient = cast<float>(normal_values(5, 100));
  State whole(initial);
  State parts(initial);
  const std::size_t cuts[] = {0, 1, 18, 50, 97, 100};
  for (std::int64_t t = 1; t <= 3; ++t) {
    whole.update(gradient, step_at(t));
    for (std::size_t c = 0; c + 1 < std::size(cuts); ++c) {
      const std::size_t first = cuts[c];
      const std::size_t count = cuts[c + 1] - first;
      static_cast<void>(adamw_update(
          std::span(parts.parameter).subspan(first, count),
          std::span(gradient).subspan(first, count),
          std::span(parts.m).subspan(first, count),
          std::span(parts.v).subspan(first, count),
          step_at(t)));
    }
  }
  EXPECT_EQ(whole.parameter, parts.parameter);
  EXPECT_EQ(whole.m, parts.m);
  EXPECT_EQ(whole.v, parts.v);
}

TEST(AdamW, SumsUpWhatPassesThrough) {
  for (const std::int64_t count : {1, 16, 37}) {
    const auto initial = cast<float>(normal_values(6, count));
    const auto gradient = cast<float>(normal_values(7, count));
    State state(initial);
    const UpdateStatistics s = state.update(gradient, step_at(1, 0));
    UpdateStatistics expected;
    for (std::size_t i = 0; i < initial.size(); ++i) {
      const auto p = static_cast<double>(state.parameter[i]);
      const auto m = static_cast<double>(state.m[i]);
      const auto v = static_cast<double>(state.v[i]);
      expected.update_squared_sum += std::pow(1e-3 * (m / 0.1) / (std::sqrt(v / 0.001) + 1e-8), 2);
      expected.parameter_squared_sum += p * p;
      expected.parameter_abs_max = std::max(expected.parameter_abs_max, std::abs(p));
      expected.momentum_squared_sum += m * m;
      expected.momentum_sum += m;
      expected.momentum_abs_max = std::max(expected.momentum_abs_max, std::abs(m));
      expected.second_moment_sum += v;
      expected.second_moment_squared_sum += v * v;
      expected.second_moment_abs_max = std::max(expected.second_moment_abs_max, v);
    }
    const double scale = static_cast<double>(count);
    EXPECT_NEAR(s.update_squared_sum, expected.update_squared_sum, 1e-12 * scale);
    EXPECT_NEAR(s.parameter_squared_sum, expected.parameter_squared_sum, 1e-13 * scale);
    EXPECT_EQ(s.parameter_abs_max, expected.parameter_abs_max);
    EXPECT_NEAR(s.momentum_squared_sum, expected.momentum_squared_sum, 1e-15 * scale);
    EXPECT_NEAR(s.momentum_sum, expected.momentum_sum, 1e-15 * scale);
    EXPECT_EQ(s.momentum_abs_max, expected.momentum_abs_max);
    EXPECT_NEAR(s.second_moment_sum, expected.second_moment_sum, 1e-17 * scale);
    EXPECT_NEAR(s.second_moment_squared_sum, expected.second_moment_squared_sum, 1e-20 * scale);
    EXPECT_EQ(s.second_moment_abs_max, expected.second_moment_abs_max);
  }
}

TEST(AdamW, GradientScaleMultipliesFirst) {
  State scaled({1});
  State plain({1});
  AdamWStep step = step_at(1);
  plain.update({0.25F}, step);
  step.gradient_scale = 0.25;
  scaled.update({1}, step);
  EXPECT_EQ(scaled.parameter, plain.parameter);
  EXPECT_EQ(scaled.v, plain.v);
}

TEST(AdamW, UnderflowOfTheSecondMomentDoesNotBlowUp) {
  State state({1});
  state.update({1e-25F}, step_at(1, 0));
  EXPECT_EQ(state.v[0], 0);
  EXPECT_EQ(state.parameter[0], 1);
}

TEST(AdamW, WithoutEpsilonAndGradientNothingMoves) {
  State state({1, 2, 3});
  const UpdateStatistics s =
      state.update({0, 0, 0}, {.learning_rate = 0.1, .epsilon = 0, .step = 1});
  EXPECT_EQ(state.parameter, (std::vector<float>{1, 2, 3}));
  EXPECT_EQ(s.update_squared_sum, 0);
  EXPECT_EQ(s.parameter_squared_sum, 14);
}

TEST(AdamW, LargeStepCountsNeedNoCorrection) {
  State state({1});
  state.update({1}, step_at(100'000'000, 0));
  EXPECT_NEAR(static_cast<double>(state.parameter[0]), 1 - 1e-3 * 0.1 / std::sqrt(0.001), 1e-6);
}

TEST(AdamW, AcceptsAnEmptyTensor) {
  State state({});
  EXPECT_EQ(state.update({}, step_at(1)).parameter_squared_sum, 0);
}

}  // namespace
}  // namespace muster::kernels
