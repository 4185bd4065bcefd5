// SPDX-License-Identifier: Apache-2.0
// Each rule on one shard, without an optimizer, against the reference in double.
#include "tests/support/random_values.h"
#include "tests/unit/optimizer/reference.h"

#include <muster/common/random.h>
#include <muster/optimizer/rules/sgd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

namespace muster::optimizer {
namespace {

using ::testing::HasSubstr;

using test::fp32_normal_values;

constexpr double kFloatEpsilon = 1.0 / (1 << 24);  // half an ulp of 1.0F
constexpr double kRate = 3e-3;
constexpr double kDecay = 0.1;
constexpr std::size_t kSize = 67;
constexpr int kSteps = 50;

struct Tensors {
  std::vector<float> parameter;
  std::vector<float> gradient;
  std::vector<float> first;
  std::vector<float> second;

  explicit Tensors(std::span<const double> values)
      : parameter(values.begin(), values.end()),
        gradient(values.size()),
        first(values.size()),
        second(values.size()) {}

  kernels::UpdateTensors view() {
    kernels::UpdateTensors tensors;
    tensors.parameter = parameter.data();
    tensors.gradient = gradient.data();
    tensors.first.data = first.data();
    tensors.second.data = second.data();
    tensors.count = static_cast<std::int64_t>(parameter.size());
    return tensors;
  }
};

kernels::UpdateStep step_number(std::int64_t step, double learning_rate, double weight_decay) {
  kernels::UpdateStep arguments;
  arguments.learning_rate = learning_rate;
  arguments.weight_decay = weight_decay;
  arguments.step = step;
  return arguments;
}

using Update = std::function<kernels::UpdateStatistics(
    const kernels::UpdateTensors&, const kernels::UpdateStep&)>;
using ReferenceUpdate = std::function<void(std::span<const double> gradient)>;

// Random steps of both from the same values. `largest_step` bounds one update in units of the rate.
void expect_equal_paths(
    std::vector<double>& reference,
    const ReferenceUpdate& reference_update,
    const Update& update,
    double largest_step) {
  Random random{31};
  reference = fp32_normal_values(random, kSize, 1.0);
  Tensors tensors{reference};
  for (int step = 1; step <= kSteps; ++step) {
    const std::vector<double> gradient = fp32_normal_values(random, kSize, 1.0);
    // The rule sees sums over 16 tokens; the reference their mean.
    for (std::size_t i = 0; i < kSize; ++i) {
      tensors.gradient[i] = static_cast<float>(gradient[i] * 16.0);
    }
    kernels::UpdateStep arguments = step_number(step, kRate, kDecay);
    arguments.gradient_scale = 1.0 / 16.0;
    static_cast<void>(update(tensors.view(), arguments));
    reference_update(gradient);
  }
  // Each step rounds p a few times and its update by a few ulps.
  for (std::size_t i = 0; i < kSize; ++i) {
    const double tolerance =
        kSteps * kFloatEpsilon * (3 * std::abs(reference[i]) + 32 * kRate * largest_step);
    EXPECT_NEAR(static_cast<double>(tensors.parameter[i]), reference[i], tolerance);
  }
}

TEST(SgdRule, FollowsItsReference) {
  ReferenceSgd reference;
  expect_equal_paths(
      reference.value,
      [&](auto gradient) { reference.update(gradient, kRate, kDecay); },
      [](const auto& tensors, const auto& step) { return update_sgd(tensors, step); },
      5);
}

TEST(MomentumRule, FollowsItsReferenceWithAndWithoutNesterov) {
  for (const bool nesterov : {false, true}) {
    const MomentumOptions options{0.9, nesterov};
    ReferenceMomentum reference;
    expect_equal_paths(
        reference.value,
        [&](auto gradient) { reference.update(gradient, options, kRate, kDecay); },
        [&](const auto& tensors, const auto& step) {
          return update_momentum(tensors, step, options);
        },
        25);
  }
}

TEST(RmsPropRule, FollowsItsReference) {
  const RmsPropOptions options{0.95, 1e-6};
  ReferenceRmsProp reference;
  expect_equal_paths(
      reference.value,
      [&](auto gradient) { reference.update(gradient, options, kRate, kDecay); },
      [&](const auto& tensors, const auto& step) { return update_rmsprop(tensors, step, options); },
      5);
}

TEST(AdamRule, FollowsItsReference) {
  const AdamOptions options{0.8, 0.97, 1e-6};
  ReferenceAdam reference;
  expect_equal_paths(
      reference.value,
      [&](auto gradient) { reference.update(gradient, options, kRate, kDecay); },
      [&](const auto& tensors, const auto& step) { return update_adam(tensors, step, options); },
      3);
}

TEST(AdamWRule, FollowsItsReference) {
  const AdamWOptions options{0.8, 0.97, 1e-6};
  ReferenceAdamW reference;
  expect_equal_paths(
      reference.value,
      [&](auto gradient) { reference.update(gradient, options, kRate, kDecay); },
      [&](const auto& tensors, const auto& step) { return update_adamw(tensors, step, options); },
      3);
}

// torch.optim.AdamW in double: p = 1, g = 0.1, -0.2, 0.3, lr 1e-3, betas (0.9, 0.999), eps 1e-8,
// weight decay 0.01.
TEST(AdamWRule, FollowsTorchsGoldenTrajectory) {
  const AdamWOptions options{0.9, 0.999, 1e-8};
  Tensors tensors{std::vector<double>{1.0}};
  const std::vector<float> gradients{0.1F, -0.2F, 0.3F};
  const std::vector<double> golden{0.998990000100, 0.999346113704, 0.998992879178};
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    tensors.gradient[0] = gradients[i];
    const auto step = step_number(static_cast<std::int64_t>(i) + 1, 1e-3, 0.01);
    static_cast<void>(update_adamw(tensors.view(), step, options));
    EXPECT_NEAR(
        static_cast<double>(tensors.parameter[0]),
        golden[i],
        static_cast<double>(i + 1) * 2 * kFloatEpsilon);
  }
  EXPECT_NEAR(static_cast<double>(tensors.first[0]), 0.0201, 1e-8);
  EXPECT_NEAR(static_cast<double>(tensors.second[0]), 1.3994001e-4, 1e-10);
}

// Coupled decay passes through the moments: another optimizer, not a variant.
TEST(AdamRule, IsNotAdamWAsSoonAsThereIsADecay) {
  for (const double decay : {0.0, 0.1}) {
    Tensors adam{std::vector<double>{1.0}};
    Tensors adamw{std::vector<double>{1.0}};
    adam.gradient[0] = adamw.gradient[0] = 0.01F;
    const auto step = step_number(1, 1e-2, decay);
    static_cast<void>(update_adam(adam.view(), step, {0.9, 0.95, 1e-8}));
    static_cast<void>(update_adamw(adamw.view(), step, {0.9, 0.95, 1e-8}));
    EXPECT_EQ(adam.parameter[0] == adamw.parameter[0], decay == 0.0);
  }
}

MuonOptions muon_options(MomentumForm form, bool nesterov) {
  MuonOptions options;
  options.momentum_form = form;
  options.nesterov = nesterov;
  return options;
}

// All four of (form, Nesterov) move as written, the one without Nesterov included, which must not
// ignore its momentum.
TEST(MuonMomentumRule, FollowsItsReferenceInEveryForm) {
  for (const MomentumForm form : {MomentumForm::kHeavyBall, MomentumForm::kEma}) {
    for (const bool nesterov : {false, true}) {
      const MuonOptions options = muon_options(form, nesterov);
      Random random{41};
      ReferenceMuon reference;
      Tensors tensors{std::vector<double>(kSize, 0.0)};
      std::vector<float> direction(kSize);
      for (int step = 1; step <= kSteps; ++step) {
        const std::vector<double> gradient = fp32_normal_values(random, kSize, 1.0);
        std::copy(gradient.begin(), gradient.end(), tensors.gradient.begin());
        static_cast<void>(update_muon_momentum(
            tensors.view(), step_number(step, kRate, kDecay), options, direction.data()));
        const std::vector<double> expected = reference.direct(gradient, options);
        // Rounding of old momenta fades by mu: 1 / (1 - mu) = 20 steps' worth of half ulps of
        // values below 32.
        for (std::size_t i = 0; i < kSize; ++i) {
          EXPECT_NEAR(static_cast<double>(direction[i]), expected[i], 20 * 32 * kFloatEpsilon);
        }
      }
    }
  }
}

// The two forms give the same direction up to the factor 1 - mu, so the same update.
TEST(MuonMomentumRule, TheFormsDifferByAConstantFactor) {
  for (const bool nesterov : {false, true}) {
    Random random{43};
    ReferenceMuon heavy;
    ReferenceMuon ema;
    for (int step = 0; step < 20; ++step) {
      const std::vector<double> gradient = fp32_normal_values(random, kSize, 1.0);
      const auto a = heavy.direct(gradient, muon_options(MomentumForm::kHeavyBall, nesterov));
      const auto b = ema.direct(gradient, muon_options(MomentumForm::kEma, nesterov));
      for (std::size_t i = 0; i < kSize; ++i) {
        EXPECT_NEAR(a[i] * 0.05, b[i], 1e-12);
      }
    }
  }
}

TEST(MuonApplyRule, DecaysBeforeItStepsAlongTheOrthogonalDirection) {
  Tensors tensors{std::vector<double>{2.0, -1.0, 0.5}};
  const std::vector<float> orthogonal{1.0F, 0.0F, -1.0F};
  static_cast<void>(apply_muon(tensors.view(), step_number(1, 0.5, 0.5), 4.0, orthogonal.data()));
  EXPECT_EQ(tensors.parameter, (std::vector<float>{-0.5F, -0.75F, 2.375F}));
}

TEST(UpdateRules, RefuseHyperparametersThatCanNeverWork) {
  EXPECT_THAT(validate(AdamWOptions{1.0, 0.9, 1e-8}).message(), HasSubstr("adamw.beta1"));
  EXPECT_THAT(validate(AdamWOptions{0.9, -0.1, 1e-8}).message(), HasSubstr("adamw.beta2"));
  EXPECT_THAT(validate(AdamWOptions{0.9, 0.9, -1}).message(), HasSubstr("adamw.epsilon"));
  EXPECT_THAT(validate(AdamOptions{0.9, 1.0, 1e-8}).message(), HasSubstr("adam.beta2"));
  EXPECT_THAT(validate(AdamOptions{0.9, 0.9, std::nan("")}).message(), HasSubstr("adam.epsilon"));
  EXPECT_THAT(validate(MomentumOptions{1.0, false}).message(), HasSubstr("momentum.momentum"));
  EXPECT_THAT(validate(RmsPropOptions{1.0, 1e-8}).message(), HasSubstr("rmsprop.alpha"));
  EXPECT_THAT(validate(RmsPropOptions{0.9, -1}).message(), HasSubstr("rmsprop.epsilon"));
}

TEST(RuleNames, RoundTripAndListTheKnown) {
  for (const Rule rule :
       {Rule::kAdamW, Rule::kMuon, Rule::kSgd, Rule::kMomentum, Rule::kRmsProp, Rule::kAdam}) {
    EXPECT_EQ(parse_rule(to_string(rule)).value(), rule);
  }
  EXPECT_THAT(parse_rule("lion").status().message(), HasSubstr("adamw, muon, sgd"));
  for (const Layout layout :
       {Layout::kWholeMatrices,
        Layout::kFlatRedundant,
        Layout::kFlatOwner,
        Layout::kRowShards,
        Layout::kReplicated}) {
    EXPECT_EQ(parse_layout(to_string(layout)).value(), layout);
  }
  EXPECT_THAT(parse_layout("fsdp").status().message(), HasSubstr("row_shards"));
}

}  // namespace
}  // namespace muster::optimizer
