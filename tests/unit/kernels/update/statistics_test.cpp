// SPDX-License-Identifier: Apache-2.0
// The sums an update takes along, against sums over the results in double.
#include "tests/unit/kernels/update/reference.h"

namespace muster::kernels {
namespace {

using test::cast;
using test::normal_values;
using test::Shard;
using test::widened;

UpdateStep statistics_step(std::int64_t t) {
  return {.learning_rate = 1e-2, .gradient_scale = 0.5, .step = t, .seed = 2};
}

// Partial sums are kept in floats, 64 terms each: a few 1e-7 of the sum of magnitudes.
constexpr double kSumError = 1e-6;

void expect_close(double actual, double expected, double magnitude, const char* name) {
  EXPECT_NEAR(actual, expected, kSumError * magnitude) << name;
}

struct Expected {
  UpdateStatistics sums;
  double momentum_magnitude{0};
  double product_magnitude{0};

  void add(double p, double g) {
    sums.parameter_squared_sum += p * p;
    sums.parameter_abs_max = std::max(sums.parameter_abs_max, std::abs(p));
    sums.gradient_squared_sum += g * g;
  }

  void add_first(double m, double g) {
    sums.momentum_squared_sum += m * m;
    sums.momentum_sum += m;
    sums.momentum_abs_max = std::max(sums.momentum_abs_max, std::abs(m));
    sums.momentum_gradient_sum += m * g;
    momentum_magnitude += std::abs(m);
    product_magnitude += std::abs(m * g);
  }

  void add_second(double before, double after, double g, double correction, double epsilon) {
    sums.second_moment_sum += after;
    sums.second_moment_squared_sum += after * after;
    sums.second_moment_abs_max = std::max(sums.second_moment_abs_max, after);
    sums.second_moment_before_sum += before;
    const double corrected = after / correction;
    sums.staleness_sum += g * g / std::max(corrected, epsilon * epsilon);
    sums.second_moment_tiny_count += std::sqrt(corrected) < 10 * epsilon ? 1 : 0;
  }

  void add_update(double update) {
    sums.update_squared_sum += update * update;
    sums.update_abs_max = std::max(sums.update_abs_max, std::abs(update));
  }

  void check(const UpdateStatistics& s) const {
    const auto same = [](double a, double b, const char* name) { expect_close(a, b, b, name); };
    same(s.update_squared_sum, sums.update_squared_sum, "update");
    same(s.update_abs_max, sums.update_abs_max, "update max");
    same(s.parameter_squared_sum, sums.parameter_squared_sum, "parameter");
    same(s.parameter_abs_max, sums.parameter_abs_max, "parameter max");
    same(s.gradient_squared_sum, sums.gradient_squared_sum, "gradient");
    same(s.momentum_squared_sum, sums.momentum_squared_sum, "momentum squared");
    expect_close(s.momentum_sum, sums.momentum_sum, momentum_magnitude, "momentum");
    same(s.momentum_abs_max, sums.momentum_abs_max, "momentum max");
    expect_close(
        s.momentum_gradient_sum,
        sums.momentum_gradient_sum,
        product_magnitude,
        "momentum gradient");
    same(s.second_moment_sum, sums.second_moment_sum, "second");
    same(s.second_moment_squared_sum, sums.second_moment_squared_sum, "second squared");
    same(s.second_moment_abs_max, sums.second_moment_abs_max, "second max");
    same(s.second_moment_before_sum, sums.second_moment_before_sum, "second before");
    // Its reciprocals have 14 bits.
    EXPECT_NEAR(s.staleness_sum, sums.staleness_sum, 1e-4 * sums.staleness_sum);
    EXPECT_EQ(s.second_moment_tiny_count, sums.second_moment_tiny_count);
  }
};

// Sizes around a pack, a block and the span of partial sums.
const std::int64_t kCounts[] = {1, 16, 37, 256, 700, 1024, 5000};

TEST(UpdateStatistics, OfAdamWAreTheSumsOverWhatPassesThrough) {
  // Epsilon in the midst of the v, so that tiny ones are counted.
  const AdamFactors factors{.epsilon = 0.02};
  for (const std::int64_t count : kCounts) {
    Shard shard(cast<float>(normal_values(6, count)));
    auto wide = widened(shard.parameter);
    for (std::int64_t t = 1; t <= 2; ++t) {
      const auto gradient = cast<float>(normal_values(static_cast<std::uint64_t>(7 + t), count));
      const UpdateStatistics sums =
          adamw_update(shard.tensors(gradient), statistics_step(t), factors);
      Expected expected;
      for (std::size_t i = 0; i < wide.size(); ++i) {
        const double g = 0.5 * static_cast<double>(gradient[i]);
        const double before = wide[i].v;
        wide[i].adamw(g, statistics_step(t), factors);
        expected.add(wide[i].p, g);
        expected.add_first(wide[i].m, g);
        expected.add_second(
            before, wide[i].v, g, 1 - std::pow(0.999, static_cast<double>(t)), factors.epsilon);
        expected.add_update(wide[i].update);
      }
      expected.check(sums);
    }
  }
}

TEST(UpdateStatistics, OfRmsPropHaveNoMomentum) {
  const RmsPropFactors factors{.epsilon = 0.01};
  for (const std::int64_t count : kCounts) {
    Shard shard(cast<float>(normal_values(8, count)));
    auto wide = widened(shard.parameter);
    const auto gradient = cast<float>(normal_values(9, count));
    Expected expected;
    for (std::size_t i = 0; i < wide.size(); ++i) {
      const double g = 0.5 * static_cast<double>(gradient[i]);
      wide[i].rmsprop(g, statistics_step(1), factors);
      expected.add(wide[i].p, g);
      expected.add_second(0, wide[i].v, g, 1, factors.epsilon);
      expected.add_update(wide[i].update);
    }
    expected.check(rmsprop_update(shard.tensors(gradient), statistics_step(1), factors));
  }
}

TEST(UpdateStatistics, OfMomentumAndSgdHaveNoSecondMoment) {
  const MomentumFactors factors{.nesterov = true};
  Shard shard(cast<float>(normal_values(10, 700)));
  Shard plain = shard;
  auto wide = widened(shard.parameter);
  auto wide_plain = wide;
  const auto gradient = cast<float>(normal_values(11, 700));
  Expected expected;
  Expected expected_plain;
  for (std::size_t i = 0; i < wide.size(); ++i) {
    const double g = 0.5 * static_cast<double>(gradient[i]);
    wide[i].momentum(g, statistics_step(1), factors);
    expected.add(wide[i].p, g);
    expected.add_first(wide[i].m, g);
    expected.add_update(wide[i].update);
    wide_plain[i].sgd(g, statistics_step(1));
    expected_plain.add(wide_plain[i].p, g);
    expected_plain.add_update(wide_plain[i].update);
  }
  expected.check(momentum_update(shard.tensors(gradient), statistics_step(1), factors));
  expected_plain.check(sgd_update(plain.tensors(gradient), statistics_step(1)));
}

TEST(UpdateStatistics, OfMuonMomentumGiveTheCosineOfMomentumAndGradient) {
  Shard shard(std::vector<float>(700, 0));
  const auto gradient = cast<float>(normal_values(12, 700));
  std::vector<float> direction(700);
  const UpdateStatistics sums =
      muon_momentum_update(shard.tensors(gradient), statistics_step(1), {}, direction.data());
  EXPECT_NEAR(
      sums.momentum_gradient_sum / std::sqrt(sums.momentum_squared_sum * sums.gradient_squared_sum),
      1,
      kSumError);
  EXPECT_EQ(sums.parameter_squared_sum, 0);
}

TEST(UpdateStatistics, RmsOfTheFirstStepIsOne) {
  // StableAdamW's RMS_t of a gradient that is like its own average.
  Shard shard(std::vector<float>(1000, 0));
  const auto gradient = cast<float>(normal_values(13, 1000, 1e-3));
  const UpdateStatistics sums = adamw_update(shard.tensors(gradient), statistics_step(1), {});
  EXPECT_NEAR(std::sqrt(sums.staleness_sum / 1000), 1, 1e-4);  // reciprocals of 14 bits
}

TEST(UpdateStatistics, DecayOfTheSecondMomentCanBeReadOff) {
  // Without gradients v only decays: after / before = beta2, the saturation.
  Shard shard(std::vector<float>(1000, 0));
  static_cast<void>(
      adamw_update(shard.tensors(cast<float>(normal_values(14, 1000))), statistics_step(1), {}));
  const UpdateStatistics sums =
      adamw_update(shard.tensors(std::vector<float>(1000, 0)), statistics_step(2), {});
  EXPECT_NEAR(sums.second_moment_sum / sums.second_moment_before_sum, 0.999, 1e-6);
  EXPECT_EQ(sums.staleness_sum, 0);
}

TEST(UpdateStatistics, SquaresCoverTheRangeOfGradients) {
  for (const double size : {1e-17, 1e-12, 1.0, 1e4, 1e17}) {
    Shard shard(std::vector<float>(300, 0));
    const auto gradient = cast<float>(normal_values(15, 300, size));
    const UpdateStatistics sums =
        adamw_update(shard.tensors(gradient), {.learning_rate = 1e-8, .step = 1}, {.epsilon = 0});
    double squared = 0;
    double fourth = 0;
    for (const float g : gradient) {
      squared += std::pow(static_cast<double>(g), 2);
      fourth += std::pow(static_cast<double>(g), 4);
    }
    EXPECT_NEAR(sums.gradient_squared_sum / squared, 1, 1e-6);
    EXPECT_NEAR(sums.momentum_squared_sum / (0.01 * squared), 1, 1e-6);
    if (size > 1e-15 && size < 1e15) {  // the fourth power of others is no float
      EXPECT_NEAR(sums.second_moment_sum / (0.001 * squared), 1, 1e-6);
      EXPECT_NEAR(sums.second_moment_squared_sum / (1e-6 * fourth), 1, 1e-6);
      EXPECT_NEAR(sums.update_squared_sum / (300 * 1e-16), 1, 1e-5);
    }
  }
}

TEST(UpdateStatistics, ShardsAddUp) {
  Shard whole(cast<float>(normal_values(16, 900)));
  Shard parts = whole;
  const auto gradient = cast<float>(normal_values(17, 900));
  const UpdateStatistics all = adamw_update(whole.tensors(gradient), statistics_step(1), {});
  UpdateStatistics sum;
  sum.add(adamw_update(parts.tensors(gradient, 0, 333), statistics_step(1), {}));
  sum.add(adamw_update(parts.tensors(gradient, 333), statistics_step(1), {}));
  EXPECT_NEAR(sum.update_squared_sum, all.update_squared_sum, 1e-6 * all.update_squared_sum);
  EXPECT_NEAR(sum.staleness_sum, all.staleness_sum, 1e-6 * all.staleness_sum);
  EXPECT_EQ(sum.parameter_abs_max, all.parameter_abs_max);
  EXPECT_EQ(sum.second_moment_abs_max, all.second_moment_abs_max);
  EXPECT_EQ(sum.second_moment_tiny_count, all.second_moment_tiny_count);
}

TEST(UpdateStatistics, ANanMaximumSurvivesAddition) {
  UpdateStatistics sum;
  UpdateStatistics bad;
  bad.momentum_abs_max = std::nan("");
  sum.add(bad);
  sum.add({});
  EXPECT_TRUE(std::isnan(sum.momentum_abs_max));
}

}  // namespace
}  // namespace muster::kernels
