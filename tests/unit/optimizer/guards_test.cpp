// SPDX-License-Identifier: Apache-2.0
// Clipping and loss scaling: what every rank decides alike from reduced numbers.
#include <muster/common/random.h>
#include <muster/optimizer/guards.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace muster::optimizer {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::vector<std::string> kGroups{"embedding", "hidden", "head"};

ClipDecision clip(
    const ClippingOptions& options,
    double clip_norm,
    std::vector<double> norms,
    GuardState& state) {
  return decide_clipping(options, clip_norm, kGroups, norms, state);
}

ClipDecision clip(const ClippingOptions& options, double clip_norm, std::vector<double> norms) {
  GuardState state;
  return clip(options, clip_norm, std::move(norms), state);
}

TEST(Clipping, ScalesTheWholeGradientToTheLimit) {
  const ClipDecision decision = clip({}, 1.0, {6.0, 0.0, 8.0});
  EXPECT_DOUBLE_EQ(decision.clip_factor, 1.0 / (10.0 + 1e-6));
  EXPECT_THAT(decision.group_clip_factors, IsEmpty());
  EXPECT_NEAR(decision.clipped_norm, 1.0, 1e-6);
  EXPECT_FALSE(decision.spike);
}

TEST(Clipping, LeavesASmallerGradientAlone) {
  const ClipDecision decision = clip({}, 1.0, {0.6, 0.0, 0.5});
  EXPECT_EQ(decision.clip_factor, 1.0);
  EXPECT_DOUBLE_EQ(decision.clipped_norm, std::sqrt(0.61));
}

TEST(Clipping, IsOffAtZero) {
  EXPECT_EQ(clip({}, 0.0, {1e9, 0.0, 0.0}).clip_factor, 1.0);
}

TEST(Clipping, OfAZeroGradientDividesNothing) {
  const ClipDecision decision = clip({}, 1.0, {0.0, 0.0, 0.0});
  EXPECT_EQ(decision.clip_factor, 1.0);
  EXPECT_EQ(decision.clipped_norm, 0.0);
}

// One tensor with a huge gradient must not throttle all others.
TEST(Clipping, AGroupWithItsOwnLimitDoesNotThrottleTheOthers) {
  ClippingOptions options;
  options.groups = {{"embedding", 0.5}};
  const ClipDecision decision = clip(options, 1.0, {1000.0, 0.6, 0.5});
  EXPECT_EQ(decision.clip_factor, 1.0);
  ASSERT_EQ(decision.group_clip_factors.size(), 3U);
  EXPECT_DOUBLE_EQ(decision.group_clip_factors[0], 0.5 / (1000.0 + 1e-6));
  EXPECT_EQ(decision.group_clip_factors[1], 1.0);
  EXPECT_EQ(decision.group_clip_factors[2], 1.0);
  EXPECT_NEAR(decision.clipped_norm, std::sqrt(0.25 + 0.61), 1e-6);
}

TEST(Clipping, TheOtherGroupsAreClippedByTheirCommonNorm) {
  ClippingOptions options;
  options.groups = {{"head", 100.0}};
  const ClipDecision decision = clip(options, 1.0, {3.0, 4.0, 50.0});
  EXPECT_DOUBLE_EQ(decision.clip_factor, 1.0 / (5.0 + 1e-6));
  EXPECT_EQ(decision.group_clip_factors[0], decision.clip_factor);
  EXPECT_EQ(decision.group_clip_factors[1], decision.clip_factor);
  EXPECT_EQ(decision.group_clip_factors[2], 1.0);
}

ClippingOptions with_zclip(std::int64_t warmup = 25) {
  ClippingOptions options;
  options.zclip = ZClipOptions{};
  options.zclip->warmup_steps = warmup;
  return options;
}

TEST(ZClip, OnlyLearnsDuringItsWarmup) {
  GuardState state;
  const ClippingOptions options = with_zclip(4);
  for (const double norm : {1.0, 2.0, 3.0, 1000.0}) {
    const ClipDecision decision = clip(options, 0.0, {norm, 0.0, 0.0}, state);
    EXPECT_EQ(decision.clip_factor, 1.0);
    EXPECT_FALSE(decision.spike);
  }
  EXPECT_EQ(state.zclip_steps, 4);
  EXPECT_NEAR(state.zclip_mean, 1006.0 / 4, 1e-9);
  const double mean = 1006.0 / 4;
  const double variance = (1.0 + 4.0 + 9.0 + 1e6) / 4 - mean * mean;
  EXPECT_NEAR(state.zclip_variance, variance, variance * 1e-12);
}

// mean 2, deviation 1: a norm of 12 has z = 10 and comes down to 2 + 1 * 2.5^2 / 10.
TEST(ZClip, BringsASpikeDownReciprocally) {
  GuardState state;
  state.zclip_mean = 2.0;
  state.zclip_variance = 1.0;
  state.zclip_steps = 25;
  const ClipDecision decision = clip(with_zclip(), 0.0, {12.0, 0.0, 0.0}, state);
  EXPECT_TRUE(decision.spike);
  EXPECT_DOUBLE_EQ(decision.clipped_norm, 2.625);
  EXPECT_DOUBLE_EQ(decision.clip_factor, 2.625 / 12.0);
  // The running values learn the clipped norm, the variance around the new mean.
  const double mean = 0.97 * 2.0 + 0.03 * 2.625;
  EXPECT_DOUBLE_EQ(state.zclip_mean, mean);
  EXPECT_DOUBLE_EQ(state.zclip_variance, 0.97 * 1.0 + 0.03 * (2.625 - mean) * (2.625 - mean));
  EXPECT_EQ(state.zclip_steps, 26);
}

TEST(ZClip, BringsASpikeBelowOneDownToo) {
  GuardState state;
  state.zclip_mean = 0.02;
  state.zclip_variance = 1e-4;
  state.zclip_steps = 25;
  const ClipDecision decision = clip(with_zclip(), 0.0, {0.12, 0.0, 0.0}, state);
  EXPECT_TRUE(decision.spike);
  EXPECT_NEAR(decision.clip_factor, 2.625 / 12.0, 1e-12);
}

TEST(ZClip, ALargerSpikeComesDownFurther) {
  double before = 1e300;
  for (const double norm : {4.6, 6.0, 20.0, 2000.0}) {
    GuardState state{2.0, 1.0, 25, 1.0, 0, 0};
    const double after = clip(with_zclip(), 0.0, {norm, 0.0, 0.0}, state).clipped_norm;
    EXPECT_LT(after, before);
    EXPECT_GT(after, 2.0);
    before = after;
  }
}

TEST(ZClip, LeavesNormsWithinTheThresholdAndSmallOnesAlone) {
  for (const double norm : {4.4, 2.0, 0.001}) {
    GuardState state{2.0, 1.0, 25, 1.0, 0, 0};
    const ClipDecision decision = clip(with_zclip(), 0.0, {norm, 0.0, 0.0}, state);
    EXPECT_EQ(decision.clip_factor, 1.0);
    EXPECT_FALSE(decision.spike);
  }
}

TEST(ZClip, ComesBeforeTheFixedLimit) {
  GuardState state{2.0, 1.0, 25, 1.0, 0, 0};
  const ClipDecision decision = clip(with_zclip(), 1.0, {12.0, 0.0, 0.0}, state);
  EXPECT_NEAR(decision.clipped_norm, 1.0, 1e-6);
  // It learns its own bound: learning 1.0 would make every usual norm a spike.
  EXPECT_DOUBLE_EQ(state.zclip_mean, 0.97 * 2.0 + 0.03 * 2.625);
}

TEST(ZClip, WatchesOnlyTheGroupsWithoutALimitOfTheirOwn) {
  ClippingOptions options = with_zclip();
  options.groups = {{"embedding", 0.5}};
  GuardState state{2.0, 1.0, 25, 1.0, 0, 0};
  const ClipDecision decision = clip(options, 0.0, {1e6, 2.0, 0.0}, state);
  EXPECT_FALSE(decision.spike);
  EXPECT_EQ(decision.group_clip_factors[1], 1.0);
}

TEST(ZClip, SurvivesNormsThatNeverVaryAndNormsOfZero) {
  for (const double usual : {3.0, 0.0}) {
    GuardState state;
    for (int step = 0; step < 30; ++step) {
      EXPECT_EQ(clip(with_zclip(), 0.0, {usual, 0.0, 0.0}, state).clip_factor, 1.0);
    }
    const ClipDecision decision = clip(with_zclip(), 0.0, {9.0, 0.0, 0.0}, state);
    EXPECT_EQ(decision.spike, usual > 0);
    EXPECT_GT(decision.clipped_norm, usual > 0 ? 2.99 : 8.99);
    EXPECT_TRUE(std::isfinite(state.zclip_variance));
  }
}

// Steady noise is clipped rarely, and one spike does not blind it for the next.
TEST(ZClip, SeesTheSecondOfTwoSpikes) {
  Random random{5};
  GuardState state;
  int alarms = 0;
  for (int step = 0; step < 500; ++step) {
    alarms += clip(with_zclip(), 0.0, {1.0 + 0.1 * random.normal(), 0, 0}, state).spike ? 1 : 0;
  }
  EXPECT_LT(alarms, 15);  // z > 2.5 has a probability of 0.6 % per step, and the deviation wobbles
  EXPECT_TRUE(clip(with_zclip(), 0.0, {50.0, 0, 0}, state).spike);
  EXPECT_TRUE(clip(with_zclip(), 0.0, {50.0, 0, 0}, state).spike);
}

TEST(Clipping, RefusesWhatCanNeverWork) {
  const auto refusal = [](auto&& change) {
    ClippingOptions options = with_zclip();
    options.groups = {{"hidden", 1.0}};
    options.agc = AgcOptions{};
    change(options);
    return validate(options, kGroups).message();
  };
  EXPECT_EQ(refusal([](ClippingOptions&) {}), "");
  EXPECT_THAT(
      refusal([](ClippingOptions& o) { o.groups[0].group = "hiden"; }),
      HasSubstr("no route has the group 'hiden'; the groups are embedding, hidden, head"));
  EXPECT_THAT(
      refusal([](ClippingOptions& o) {
        o.groups.push_back({"hidden", 2.0});
      }),
      HasSubstr("'hidden' is given twice"));
  EXPECT_THAT(
      refusal([](ClippingOptions& o) { o.groups[0].clip_norm = 0; }), HasSubstr("'hidden' must"));
  EXPECT_THAT(refusal([](ClippingOptions& o) { o.zclip->alpha = 1; }), HasSubstr("zclip.alpha"));
  EXPECT_THAT(
      refusal([](ClippingOptions& o) { o.zclip->threshold = 0; }), HasSubstr("zclip.threshold"));
  EXPECT_THAT(
      refusal([](ClippingOptions& o) { o.zclip->warmup_steps = 1; }), HasSubstr("warmup_steps"));
  EXPECT_THAT(refusal([](ClippingOptions& o) { o.agc->factor = 0; }), HasSubstr("agc.factor"));
  EXPECT_THAT(refusal([](ClippingOptions& o) { o.agc->epsilon = 0; }), HasSubstr("agc.epsilon"));
  EXPECT_THAT(refusal([](ClippingOptions& o) { o.agc->groups = {"tail"}; }), HasSubstr("'tail'"));
}

LossScaleOptions short_interval() {
  LossScaleOptions options;
  options.growth_interval = 3;
  return options;
}

GuardState started(const LossScaleOptions& options) {
  GuardState state;
  start_loss_scale(options, state);
  return state;
}

TEST(LossScale, StartsAtItsInitialValue) {
  EXPECT_EQ(started({}).loss_scale, 65536.0);
  EXPECT_EQ(GuardState{}.loss_scale, 1.0);
}

TEST(LossScale, GrowsAfterARunOfCleanSteps) {
  GuardState state = started(short_interval());
  for (const double expected : {65536.0, 65536.0, 131072.0, 131072.0, 131072.0, 262144.0}) {
    update_loss_scale(short_interval(), false, state);
    EXPECT_EQ(state.loss_scale, expected);
  }
}

TEST(LossScale, AnOverflowStartsTheRunOfCleanStepsAgain) {
  GuardState state = started(short_interval());
  for (const bool overflow : {false, false, true, false, false}) {
    update_loss_scale(short_interval(), overflow, state);
    EXPECT_EQ(state.loss_scale, 65536.0);
  }
  update_loss_scale(short_interval(), false, state);
  EXPECT_EQ(state.loss_scale, 131072.0);
}

TEST(LossScale, ShrinksAfterOverflowsInARow) {
  GuardState state = started(short_interval());
  update_loss_scale(short_interval(), true, state);
  EXPECT_EQ(state.loss_scale, 65536.0);
  update_loss_scale(short_interval(), true, state);
  EXPECT_EQ(state.loss_scale, 32768.0);
  update_loss_scale(short_interval(), true, state);  // Still in the same row.
  EXPECT_EQ(state.loss_scale, 16384.0);
  update_loss_scale(short_interval(), false, state);
  update_loss_scale(short_interval(), true, state);
  EXPECT_EQ(state.loss_scale, 16384.0);
}

TEST(LossScale, StaysWithinItsLimits) {
  LossScaleOptions options = short_interval();
  options.initial = 2;
  options.minimum = 1;
  options.maximum = 4;
  GuardState state = started(options);
  for (int step = 0; step < 30; ++step) {
    update_loss_scale(options, true, state);
  }
  EXPECT_EQ(state.loss_scale, 1.0);
  for (int step = 0; step < 30; ++step) {
    update_loss_scale(options, false, state);
  }
  EXPECT_EQ(state.loss_scale, 4.0);
}

TEST(LossScale, RefusesWhatCanNeverWork) {
  const auto refusal = [](auto&& change) {
    LossScaleOptions options;
    change(options);
    return validate(options).message();
  };
  EXPECT_EQ(refusal([](LossScaleOptions&) {}), "");
  EXPECT_THAT(refusal([](LossScaleOptions& o) { o.growth = 1; }), HasSubstr("growth"));
  EXPECT_THAT(refusal([](LossScaleOptions& o) { o.backoff = 1; }), HasSubstr("backoff"));
  EXPECT_THAT(refusal([](LossScaleOptions& o) { o.growth_interval = 0; }), HasSubstr("interval"));
  EXPECT_THAT(refusal([](LossScaleOptions& o) { o.hysteresis = 0; }), HasSubstr("hysteresis"));
  EXPECT_THAT(refusal([](LossScaleOptions& o) { o.initial = 0.5; }), HasSubstr("minimum"));
}

}  // namespace
}  // namespace muster::optimizer
