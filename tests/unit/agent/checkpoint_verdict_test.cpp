// SPDX-License-Identifier: Apache-2.0
// The checkpoint and ending rules of the verdict.
#include "tests/unit/agent/lane_ranks.h"

#include <gtest/gtest.h>

namespace muster::agent {
namespace {

class CheckpointVerdict : public testing::Test {
 protected:
  ReducedLanes lanes() const {
    LocalLanes rank = healthy_rank();
    rank.preempt = preempt_;
    rank.prepared_checkpoint = prepared_;
    rank.failed_checkpoint = failed_;
    if (!pending_.empty()) {
      rank.armed_command = pending_.back().id.value();
    }
    return reduce(small_layout(), {rank, rank});
  }

  Verdict step() { return decide(lanes(), pending_, options_, state_); }

  std::vector<Command> pending_;
  bool preempt_{false};
  std::int64_t prepared_{0};
  std::int64_t failed_{0};
  DecideOptions options_;
  SharedState state_;
};

TEST_F(CheckpointVerdict, BeginsAtTheEndOfEachInterval) {
  options_.checkpoint_interval = 3;
  EXPECT_EQ(step().begin_checkpoint, 0);
  EXPECT_EQ(step().begin_checkpoint, 0);
  EXPECT_EQ(step().begin_checkpoint, 1);
  EXPECT_EQ(state_.step, 3);
  EXPECT_EQ(state_.checkpoint_in_flight, 1);
}

TEST_F(CheckpointVerdict, CommitsWhenEveryRankPrepared) {
  options_.checkpoint_interval = 100;
  pending_ = {command(1, CommandKind::kCheckpointNow)};
  EXPECT_EQ(step().begin_checkpoint, 1);
  EXPECT_EQ(step().commit_checkpoint, 0);
  prepared_ = 1;
  const Verdict verdict = step();
  EXPECT_EQ(verdict.commit_checkpoint, 1);
  EXPECT_FALSE(verdict.commit_pinned);
  EXPECT_EQ(state_.checkpoint_in_flight, 0);
  EXPECT_EQ(step().commit_checkpoint, 0);
}

TEST_F(CheckpointVerdict, ArgumentOfTheCommandPinsItsCheckpoint) {
  pending_ = {command(1, CommandKind::kCheckpointNow, 1.0)};
  step();
  prepared_ = 1;
  EXPECT_TRUE(step().commit_pinned);
}

TEST_F(CheckpointVerdict, AbandonsWhenARankFailedAndSaysWhy) {
  pending_ = {command(1, CommandKind::kCheckpointNow)};
  step();
  failed_ = 1;
  const Verdict verdict = step();
  EXPECT_EQ(verdict.abandon_checkpoint, 1);
  EXPECT_EQ(verdict.commit_checkpoint, 0);
  EXPECT_NE(verdict.reason.find("checkpoint 1"), std::string::npos);
  EXPECT_FALSE(verdict.skip);
}

TEST_F(CheckpointVerdict, RequestDuringOneInFlightIsRemembered) {
  pending_ = {command(1, CommandKind::kCheckpointNow)};
  EXPECT_EQ(step().begin_checkpoint, 1);
  pending_ = {command(2, CommandKind::kCheckpointNow, 1.0)};
  EXPECT_EQ(step().begin_checkpoint, 0);
  EXPECT_TRUE(state_.checkpoint_wanted);
  prepared_ = 1;
  const Verdict verdict = step();
  EXPECT_EQ(verdict.commit_checkpoint, 1);
  EXPECT_FALSE(verdict.commit_pinned);
  EXPECT_EQ(verdict.begin_checkpoint, 2);
  prepared_ = 2;
  EXPECT_TRUE(step().commit_pinned);
}

TEST_F(CheckpointVerdict, StopSavesAndEndsAtTheSameStep) {
  pending_ = {command(1, CommandKind::kStop)};
  const Verdict verdict = step();
  EXPECT_EQ(verdict.ending, Ending::kStopped);
  EXPECT_EQ(exit_code(verdict.ending), 93);
  EXPECT_EQ(verdict.begin_checkpoint, 1);
  EXPECT_FALSE(verdict.skip);
}

TEST_F(CheckpointVerdict, PreemptionOfOneRankEndsAllAsPreempted) {
  preempt_ = true;
  const Verdict verdict = step();
  EXPECT_EQ(verdict.ending, Ending::kPreempted);
  EXPECT_EQ(verdict.begin_checkpoint, 1);
  EXPECT_NE(verdict.reason, "");
}

TEST_F(CheckpointVerdict, FinishesAfterTotalStepsEvenWhenPreemptedThere) {
  options_.total_steps = 2;
  EXPECT_EQ(step().ending, Ending::kContinue);
  preempt_ = true;
  const Verdict verdict = step();
  EXPECT_EQ(verdict.ending, Ending::kFinished);
  EXPECT_EQ(verdict.begin_checkpoint, 1);
}

TEST_F(CheckpointVerdict, EndingSavesNothingWithoutCheckpointOnStop) {
  options_.checkpoint_on_stop = false;
  preempt_ = true;
  EXPECT_EQ(step().begin_checkpoint, 0);
}

TEST_F(CheckpointVerdict, StopDuringOneInFlightLeavesTheFinalOneToFinish) {
  pending_ = {command(1, CommandKind::kCheckpointNow)};
  step();
  pending_ = {command(2, CommandKind::kStop)};
  const Verdict last = step();
  EXPECT_EQ(last.ending, Ending::kStopped);
  EXPECT_EQ(last.begin_checkpoint, 0);
  EXPECT_EQ(resolve_checkpoint(lanes(), state_).begin_checkpoint, 0);
  prepared_ = 1;
  const Verdict settled = resolve_checkpoint(lanes(), state_);
  EXPECT_EQ(settled.commit_checkpoint, 1);
  EXPECT_EQ(settled.begin_checkpoint, 2);
  EXPECT_EQ(state_.step, 2);
}

}  // namespace
}  // namespace muster::agent
