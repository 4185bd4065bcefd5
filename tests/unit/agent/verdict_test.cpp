// SPDX-License-Identifier: Apache-2.0
#include "tests/support/floats.h"
#include "tests/unit/agent/lane_ranks.h"

#include <muster/agent/agent.h>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace muster::agent {
namespace {

using muster::test::kNanF;

// Two ranks in lock step.
class VerdictTest : public testing::Test {
 protected:
  Verdict step() { return decide(reduce(small_layout(), ranks_), pending_, options_, state_); }

  void arm_on_all(const Command& next) {
    pending_.push_back(next);
    for (LocalLanes& rank : ranks_) {
      rank.armed_command = next.id.value();
      rank.pending_digest = command_digest(pending_, state_.last_applied_command, ~0ULL);
    }
  }

  void prepared_on_all(std::int64_t sequence) {
    for (LocalLanes& rank : ranks_) {
      rank.prepared_checkpoint = sequence;
    }
  }

  std::vector<LocalLanes> ranks_{healthy_rank(), healthy_rank()};
  std::vector<Command> pending_;
  DecideOptions options_;
  SharedState state_;
};

using Verdicts = VerdictTest;

TEST_F(Verdicts, PlainStepAppliesTheTokenNormalisedUpdate) {
  const Verdict verdict = step();
  EXPECT_FALSE(verdict.skip);
  EXPECT_EQ(verdict.gradient_scale, 1.0 / 20.0);
  EXPECT_EQ(verdict.loss, 2.0);
  EXPECT_DOUBLE_EQ(verdict.gradient_norm, std::sqrt(8.0) / 20.0);
  EXPECT_EQ(verdict.clip_factor, 1.0);
  EXPECT_EQ(verdict.ending, Ending::kContinue);
  EXPECT_EQ(verdict.reason, "");
  EXPECT_EQ(state_.step, 1);
}

TEST_F(Verdicts, ClipsToTheNormLimit) {
  ranks_[0].squared_norm = {1e6};
  const Verdict verdict = step();
  // torch's 1e-6 keeps the result that much below the limit.
  EXPECT_NEAR(verdict.clip_factor * verdict.gradient_norm, options_.clip_norm, 1e-6);
  EXPECT_TRUE(verdict.group_clip_factors.empty());
}

TEST_F(Verdicts, ClipNormZeroSwitchesClippingOff) {
  ranks_[0].squared_norm = {1e6};
  options_.clip_norm = 0;
  EXPECT_EQ(step().clip_factor, 1.0);
}

TEST_F(Verdicts, SkipsForNonFiniteGradients) {
  ranks_[1].nonfinite_count = 1;
  const Verdict verdict = step();
  EXPECT_TRUE(verdict.skip);
  EXPECT_TRUE(std::isnan(verdict.gradient_norm));
  EXPECT_EQ(verdict.clip_factor, 1.0);
  EXPECT_EQ(state_.skipped_steps, 1);
  EXPECT_NE(verdict.reason.find("NaN"), std::string::npos);
}

TEST_F(Verdicts, ARunThatSkipsTooOftenEndsAsFailedAndSavesNothing) {
  options_.skips_max = 3;
  options_.skip_window = 5;
  options_.checkpoint_interval = 1;
  options_.total_steps = 8;
  std::vector<Ending> endings;
  std::vector<bool> begins;
  // Applied, then skipped but for one of 4 steps: the third skip within 5 steps ends the run.
  for (const bool bad : {false, true, true, false, true}) {
    ranks_[1].nonfinite_count = bad ? 1 : 0;
    state_.checkpoint_in_flight = 0;
    const Verdict verdict = step();
    endings.push_back(verdict.ending);
    begins.push_back(verdict.begin_checkpoint != 0);
    if (verdict.ending == Ending::kFailed) {
      EXPECT_NE(
          verdict.reason.find("3 of the last 4 steps were skipped, so the run ends: go back to a "
                              "checkpoint from before step 1"),
          std::string::npos)
          << verdict.reason;
    }
  }
  const Ending on = Ending::kContinue;
  EXPECT_EQ(endings, (std::vector<Ending>{on, on, on, on, Ending::kFailed}));
  EXPECT_EQ(begins, (std::vector<bool>{true, false, false, true, false}));
  EXPECT_EQ(exit_code(Ending::kFailed), kExitNeverRestart);
}

TEST_F(Verdicts, ARunThatWithholdsValuesInEveryUpdateEndsAndNamesGroupAndStep) {
  options_.withheld_max = 3;
  options_.group_names = {"embedding"};
  ranks_[0].update.resize(1);
  ranks_[0].update[0].element_count = 10;
  std::vector<Ending> endings;
  Verdict verdict;
  // A skipped step has no update: it neither counts nor ends the streak. A healthy update does.
  for (const auto& [updated, withheld] :
       {std::pair{true, 4}, {true, 0}, {true, 1}, {false, 0}, {true, 2}, {true, 7}}) {
    ranks_[0].update[0].element_count = updated ? 10 : 0;
    ranks_[0].update[0].elements.withheld_count = withheld;
    verdict = step();
    EXPECT_FALSE(verdict.skip);
    endings.push_back(verdict.ending);
  }
  const Ending on = Ending::kContinue;
  EXPECT_EQ(endings, (std::vector<Ending>{on, on, on, on, on, Ending::kFailed}));
  EXPECT_NE(
      verdict.reason.find(
          "new values would not have been finite in 3 updates in a row, the last in "
          "7 elements of 'embedding', so the run ends: go back to a checkpoint from "
          "before step 1"),
      std::string::npos)
      << verdict.reason;
}

TEST_F(Verdicts, WithheldValuesMayBeAllowedForEver) {
  options_.withheld_max = 0;
  ranks_[0].update.resize(1);
  ranks_[0].update[0].element_count = 10;
  ranks_[0].update[0].elements.withheld_count = 1;
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(step().ending, Ending::kContinue);
  }
}

TEST_F(Verdicts, ALostStateEndsTheRunAtOnceAndNamesGroupAndStep) {
  options_.group_names = {"embedding"};
  EXPECT_EQ(step().ending, Ending::kContinue);
  ranks_[1].update.resize(1);
  ranks_[1].update[0].element_count = 10;
  ranks_[1].update[0].elements.withheld_count = 256;
  ranks_[1].update[0].elements.lost_count = 256;
  const Verdict verdict = step();
  EXPECT_EQ(verdict.ending, Ending::kFailed);
  EXPECT_NE(
      verdict.reason.find("parameters or optimizer states are lost: 256 elements of 'embedding' "
                          "were not finite before the update of step 0, so the run ends: go back "
                          "to a checkpoint from before step 0"),
      std::string::npos)
      << verdict.reason;
}

TEST_F(Verdicts, SkipsFurtherApartThanTheWindowEndNothing) {
  options_.skips_max = 2;
  options_.skip_window = 3;
  for (int i = 0; i < 40; ++i) {
    ranks_[1].nonfinite_count = i % 3 == 0 ? 1 : 0;
    EXPECT_EQ(step().ending, Ending::kContinue) << i;
  }
}

TEST_F(Verdicts, ACheckpointThatFallsDueAtASkippedStepBeginsAtTheNextAppliedOne) {
  options_.checkpoint_interval = 2;
  std::vector<bool> begins;
  for (const bool bad : {false, true, true, false, false}) {
    ranks_[1].nonfinite_count = bad ? 1 : 0;
    state_.checkpoint_in_flight = 0;
    begins.push_back(step().begin_checkpoint != 0);
  }
  EXPECT_EQ(begins, (std::vector<bool>{false, false, false, true, false}));
}

TEST_F(Verdicts, SkipsForANonFiniteLossAndReportsItAsNan) {
  ranks_[1].loss_sum = std::nan("");
  const Verdict verdict = step();
  EXPECT_TRUE(verdict.skip);
  EXPECT_TRUE(std::isnan(verdict.loss));
}

TEST_F(Verdicts, SkipsForANonFiniteLogit) {
  ranks_[0].max_logits = {{kNanF, 1.0F}};
  state_.qk_clip_threshold = 1.0;
  const Verdict verdict = step();
  EXPECT_TRUE(verdict.skip);
  EXPECT_TRUE(verdict.head_gammas.empty());
}

TEST_F(Verdicts, SkipsAStepWithoutTokens) {
  for (LocalLanes& rank : ranks_) {
    rank.token_count = 0;
  }
  const Verdict verdict = step();
  EXPECT_TRUE(verdict.skip);
  EXPECT_EQ(verdict.gradient_scale, 0.0);
}

TEST_F(Verdicts, QkClipScalesOnlyHeadsAboveTau) {
  state_.qk_clip_threshold = 6.0;
  const Verdict verdict = step();
  ASSERT_EQ(verdict.head_gammas.size(), 1U);
  EXPECT_EQ(verdict.head_gammas[0][0], 1.0);
  EXPECT_DOUBLE_EQ(verdict.head_gammas[0][1], 6.0 / 7.0);
}

TEST_F(Verdicts, QkClipIsEmptyWhenNoHeadIsAboveTau) {
  state_.qk_clip_threshold = 7.0;
  EXPECT_TRUE(step().head_gammas.empty());
}

TEST_F(Verdicts, CommandWaitsForTheSlowestRank) {
  arm_on_all(command(1, CommandKind::kSkipStep));
  ranks_[1].armed_command = 0;
  ranks_[1].pending_digest = 0;
  EXPECT_FALSE(step().skip);
  arm_on_all(command(1, CommandKind::kSkipStep));
  const Verdict verdict = step();
  EXPECT_TRUE(verdict.skip);
  ASSERT_EQ(verdict.commands.size(), 1U);
  EXPECT_EQ(verdict.commands[0].state, CommandState::kApplied);
}

TEST_F(Verdicts, CommandRunsOnceHoweverOftenItArrives) {
  arm_on_all(command(1, CommandKind::kSkipStep));
  EXPECT_TRUE(step().skip);
  arm_on_all(command(1, CommandKind::kSkipStep));
  const Verdict again = step();
  EXPECT_FALSE(again.skip);
  EXPECT_TRUE(again.commands.empty());
}

TEST_F(Verdicts, CommandExpiresAfterItsStep) {
  Command late = command(1, CommandKind::kSkipStep);
  late.expires_step = 4;
  state_.step = 4;
  SharedState in_time = state_;
  arm_on_all(late);
  EXPECT_TRUE(decide(reduce(small_layout(), ranks_), pending_, options_, in_time).skip);
  state_.step = 5;
  const Verdict verdict = step();
  EXPECT_FALSE(verdict.skip);
  EXPECT_EQ(verdict.commands[0].state, CommandState::kExpired);
  EXPECT_EQ(state_.last_applied_command, 1U);
}

TEST_F(Verdicts, DifferentListsOnTheRanksAreRejectedTogether) {
  arm_on_all(command(2, CommandKind::kStop));
  ranks_[1].pending_digest = 99;
  const Verdict verdict = step();
  EXPECT_EQ(verdict.ending, Ending::kContinue);
  EXPECT_EQ(verdict.commands[0].state, CommandState::kRejected);
  EXPECT_EQ(state_.last_applied_command, 2U);
}

TEST_F(Verdicts, CommandsRunInTheOrderOfTheirIds) {
  arm_on_all(command(1, CommandKind::kSetQkClipThreshold, 10));
  arm_on_all(command(2, CommandKind::kSetQkClipThreshold, 30));
  EXPECT_EQ(step().commands.size(), 2U);
  EXPECT_EQ(state_.qk_clip_threshold, 30.0);
}

TEST_F(Verdicts, ThresholdActsInTheStepThatSetsIt) {
  arm_on_all(command(1, CommandKind::kSetQkClipThreshold, 6));
  EXPECT_EQ(step().head_gammas.size(), 1U);
}

TEST_F(Verdicts, NegativeThresholdIsRejectedWithItsValue) {
  arm_on_all(command(1, CommandKind::kSetQkClipThreshold, -2));
  const Verdict verdict = step();
  EXPECT_EQ(verdict.commands[0].state, CommandState::kRejected);
  EXPECT_NE(verdict.commands[0].reason.find("-2"), std::string::npos);
  EXPECT_EQ(state_.qk_clip_threshold, 0.0);
}

TEST_F(Verdicts, UnknownCommandKindIsRejected) {
  arm_on_all(command(1, static_cast<CommandKind>(77)));
  EXPECT_EQ(step().commands[0].state, CommandState::kRejected);
}

TEST_F(Verdicts, CheckpointCommandNeedsACheckpointFolder) {
  options_.checkpoints_enabled = false;
  arm_on_all(command(1, CommandKind::kCheckpointNow));
  const Verdict verdict = step();
  EXPECT_EQ(verdict.begin_checkpoint, 0);
  EXPECT_NE(verdict.commands[0].reason.find("MUSTER_CHECKPOINT_ROOT"), std::string::npos);
}

TEST_F(Verdicts, DigestMismatchIsDivergenceAndTrainingGoesOn) {
  ranks_[0].replica_digest = 5;
  ranks_[1].replica_digest = 6;
  const Verdict verdict = step();
  EXPECT_TRUE(verdict.diverged);
  EXPECT_FALSE(verdict.skip);
  EXPECT_EQ(verdict.ending, Ending::kContinue);
}

TEST_F(Verdicts, GenerationMismatchAbortsAndLeavesTheStateAlone) {
  ranks_[1].generation = 2;
  const SharedState before = state_;
  const Verdict verdict = step();
  EXPECT_EQ(verdict.ending, Ending::kAbort);
  EXPECT_TRUE(verdict.skip);
  EXPECT_EQ(state_, before);
}

TEST_F(Verdicts, EqualLanesGiveEqualStatesOnAllRanks) {
  options_.checkpoint_interval = 1;
  SharedState other = state_;
  arm_on_all(command(1, CommandKind::kCheckpointNow));
  for (int i = 0; i < 5; ++i) {
    prepared_on_all(i);
    static_cast<void>(decide(reduce(small_layout(), ranks_), pending_, options_, other));
    step();
    EXPECT_EQ(state_, other);
  }
}

}  // namespace
}  // namespace muster::agent
