// SPDX-License-Identifier: Apache-2.0
// Clipping, loss scale and QK-clip in the verdict, from reduced lanes alone.
#include "tests/unit/agent/lane_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace muster::agent {
namespace {

using ::testing::HasSubstr;

// Two ranks in lock step, two groups.
class GuardVerdicts : public testing::Test {
 protected:
  GuardVerdicts() {
    options_.clip_norm = 0;
    options_.group_names = {"embedding", "hidden"};
    set_norms(0, 1);
  }

  Verdict step() {
    LaneLayout layout = small_layout();
    layout.groups = 2;
    return decide(reduce(layout, ranks_), pending_, options_, state_);
  }

  // The norms of the token-normalised gradient, all of it on rank 0.
  void set_norms(double embedding, double hidden) {
    constexpr double kTokens = 20;
    const double scale = kTokens * state_.guard.loss_scale;
    ranks_[0].squared_norm = {
        embedding * embedding * scale * scale, hidden * hidden * scale * scale};
    ranks_[1].squared_norm = {0, 0};
  }

  void use_loss_scale() {
    options_.loss_scale = optimizer::LossScaleOptions{};
    options_.loss_scale->growth_interval = 2;
    optimizer::start_loss_scale(*options_.loss_scale, state_.guard);
  }

  void arm_on_all(const Command& next) {
    pending_.push_back(next);
    for (LocalLanes& rank : ranks_) {
      rank.armed_command = next.id.value();
      rank.pending_digest = command_digest(pending_, state_.last_applied_command, ~0ULL);
    }
  }

  std::vector<LocalLanes> ranks_{healthy_rank(), healthy_rank()};
  std::vector<Command> pending_;
  DecideOptions options_;
  SharedState state_;
};

TEST_F(GuardVerdicts, GroupsWithALimitOfTheirOwnGetFactorsOfTheirOwn) {
  options_.clipping.groups = {{"embedding", 0.5}};
  options_.clip_norm = 1.0;
  set_norms(100, 0.75);
  const Verdict verdict = step();
  ASSERT_EQ(verdict.group_clip_factors.size(), 2U);
  EXPECT_NEAR(verdict.group_clip_factors[0], 0.005, 1e-9);
  EXPECT_EQ(verdict.group_clip_factors[1], 1.0);
  EXPECT_EQ(verdict.clip_factor, 1.0);
}

TEST_F(GuardVerdicts, AZClipSpikeIsClippedAndNamed) {
  options_.clipping.zclip = optimizer::ZClipOptions{};
  options_.clipping.zclip->warmup_steps = 3;
  for (const double norm : {0.9, 1.0, 1.1}) {
    set_norms(0, norm);
    EXPECT_FALSE(step().gradient_spike);
  }
  set_norms(0, 30);
  const Verdict verdict = step();
  EXPECT_TRUE(verdict.gradient_spike);
  EXPECT_FALSE(verdict.skip);
  EXPECT_LT(verdict.clip_factor, 1.1 / 30);
  EXPECT_THAT(verdict.reason, HasSubstr("ZClip: the gradient norm 30.0"));
  EXPECT_THAT(verdict.reason, HasSubstr("its mean 1.0"));
}

// A norm that was NaN would blind the running values for good; one of a skipped batch would teach
// them what never happened.
TEST_F(GuardVerdicts, ASkippedStepTeachesZClipNothing) {
  options_.clipping.zclip = optimizer::ZClipOptions{};
  set_norms(0, 1);
  static_cast<void>(step());
  const optimizer::GuardState learned = state_.guard;
  ranks_[1].nonfinite_count = 1;
  EXPECT_TRUE(step().skip);
  EXPECT_EQ(state_.guard, learned);
  ranks_[1].nonfinite_count = 0;
  arm_on_all(command(1, CommandKind::kSkipStep));
  set_norms(0, 1000);
  EXPECT_TRUE(step().skip);
  EXPECT_EQ(state_.guard, learned);
  EXPECT_EQ(state_.guard.zclip_steps, 1);
}

TEST_F(GuardVerdicts, WithoutFp16ParametersTheLossScaleIsOne) {
  ranks_[1].nonfinite_count = 1;
  EXPECT_EQ(step().loss_scale, 1.0);
  EXPECT_EQ(state_.guard.loss_scale, 1.0);
}

TEST_F(GuardVerdicts, GradientsAreDividedByTheLossScaleBeforeTheirNormIsLookedAt) {
  use_loss_scale();
  options_.clip_norm = 1.0;
  set_norms(0, 0.5);
  const Verdict verdict = step();
  EXPECT_EQ(verdict.loss_scale, 65536.0);
  EXPECT_DOUBLE_EQ(verdict.gradient_scale, 1.0 / (20.0 * 65536.0));
  EXPECT_DOUBLE_EQ(verdict.gradient_norm, 0.5);
  EXPECT_EQ(verdict.clip_factor, 1.0);
  EXPECT_EQ(verdict.loss, 2.0);  // Losses are not scaled.
}

TEST_F(GuardVerdicts, OverflowsInARowShrinkTheLossScaleAndSkip) {
  use_loss_scale();
  ranks_[0].nonfinite_count = 4;
  const Verdict first = step();
  EXPECT_TRUE(first.skip);
  EXPECT_EQ(state_.guard.loss_scale, 65536.0);
  const Verdict second = step();
  EXPECT_TRUE(second.skip);
  EXPECT_EQ(second.loss_scale, 65536.0);
  EXPECT_EQ(state_.guard.loss_scale, 32768.0);
  EXPECT_THAT(second.reason, HasSubstr("loss scale 65536.000000 -> 32768.000000"));
}

TEST_F(GuardVerdicts, CleanStepsGrowTheLossScaleFromTheNextStepOn) {
  use_loss_scale();
  EXPECT_EQ(step().loss_scale, 65536.0);
  EXPECT_EQ(step().loss_scale, 65536.0);
  EXPECT_EQ(step().loss_scale, 131072.0);
}

TEST_F(GuardVerdicts, StepsSkippedForAnotherReasonLeaveTheLossScaleAlone) {
  use_loss_scale();
  const optimizer::GuardState before = state_.guard;
  arm_on_all(command(1, CommandKind::kSkipStep));
  EXPECT_TRUE(step().skip);
  ranks_[0].loss_sum = std::nan("");
  EXPECT_TRUE(step().skip);
  EXPECT_EQ(state_.guard, before);
}

TEST_F(GuardVerdicts, ClippedHeadsAreCountedOverAllSteps) {
  state_.qk_clip_threshold = 4.0;  // Both heads, 5 and 7, are over it.
  static_cast<void>(step());
  static_cast<void>(step());
  EXPECT_EQ(state_.clipped_heads, 4);
}

TEST_F(GuardVerdicts, ASkippedStepClipsNoHead) {
  state_.qk_clip_threshold = 4.0;
  ranks_[0].nonfinite_count = 1;
  EXPECT_TRUE(step().head_gammas.empty());
  EXPECT_EQ(state_.clipped_heads, 0);
}

// Maxima that are negative, zero or absent on every rank.
TEST_F(GuardVerdicts, HeadsWithoutALargeMaximumAreLeftAlone) {
  state_.qk_clip_threshold = 4.0;
  for (LocalLanes& rank : ranks_) {
    rank.max_logits = {{-5.0F, 0.0F}};
  }
  EXPECT_TRUE(step().head_gammas.empty());
  for (LocalLanes& rank : ranks_) {
    rank.max_logits = {};
  }
  EXPECT_TRUE(step().head_gammas.empty());
}

TEST_F(GuardVerdicts, AThresholdForAModelThatCannotBeClippedIsRejectedWithTheReason) {
  options_.qk_clip_obstacle = "attention layer 3: queries are normalised";
  arm_on_all(command(1, CommandKind::kSetQkClipThreshold, 100));
  const Verdict verdict = step();
  ASSERT_EQ(verdict.commands.size(), 1U);
  EXPECT_EQ(verdict.commands[0].state, CommandState::kRejected);
  EXPECT_EQ(verdict.commands[0].reason, options_.qk_clip_obstacle);
  EXPECT_EQ(state_.qk_clip_threshold, 0.0);
  EXPECT_FALSE(verdict.skip);
}

TEST_F(GuardVerdicts, SwitchingQkClipOffIsAlwaysAllowed) {
  options_.qk_clip_obstacle = "attention layer 3: queries are normalised";
  arm_on_all(command(1, CommandKind::kSetQkClipThreshold, 0));
  EXPECT_EQ(step().commands[0].state, CommandState::kApplied);
}

}  // namespace
}  // namespace muster::agent
