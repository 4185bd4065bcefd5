// SPDX-License-Identifier: Apache-2.0
#include "cli/demo/acceptance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace muster::demo {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

DemoOptions options() {
  DemoOptions options;
  options.nan_step = 10;
  options.loss_bound = 2.6;
  options.folder = "runs/one";
  return options;
}

DemoFacts good_facts() {
  DemoFacts facts;
  facts.launcher_exit_code = 0;
  facts.ranks = 4;
  facts.steps = 100;
  facts.first_loss = 5.6;
  facts.last_loss = 2.1;
  facts.skipped = {{10, 1, "gradients hold NaN or infinity", 4}};
  facts.restarts = {{"rank 2 (pid 7) was killed by signal 9", "step-50.gen-1", 50, 1.5}};
  facts.attention = {{0, true, 0.75}, {1, true, 1.0}, {2, false, 1.0}};
  facts.samples_stored = 1234567;
  return facts;
}

TEST(DemoVerdict, HoldsWhenEveryPromiseWasKept) {
  EXPECT_THAT(broken_promises(options(), good_facts()), IsEmpty());
}

TEST(DemoVerdict, NamesALossAboveTheBound) {
  DemoFacts facts = good_facts();
  facts.last_loss = 2.6;
  EXPECT_THAT(
      broken_promises(options(), facts), ElementsAre(HasSubstr("not below the bound 2.60")));
}

TEST(DemoVerdict, DoesNotAcceptANanLoss) {
  DemoFacts facts = good_facts();
  facts.last_loss = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(broken_promises(options(), facts), ElementsAre(HasSubstr("nan nats")));
}

TEST(DemoVerdict, NamesANanStepThatNobodySkipped) {
  DemoFacts facts = good_facts();
  facts.skipped.clear();
  EXPECT_THAT(broken_promises(options(), facts), ElementsAre(HasSubstr("was not skipped")));
}

TEST(DemoVerdict, CountsRanksThatDidNotSkip) {
  DemoFacts facts = good_facts();
  facts.skipped[0].ranks = 3;
  EXPECT_THAT(broken_promises(options(), facts), ElementsAre(HasSubstr("3 of 4 ranks")));
}

TEST(DemoVerdict, WantsBlockAttentionWhereItWasAskedFor) {
  DemoFacts facts = good_facts();
  facts.attention = {{0, false, 1.0}};
  EXPECT_THAT(
      broken_promises(options(), facts), ElementsAre(HasSubstr("no layer ran block attention")));
  DemoOptions full = options();
  full.attention = "full";
  EXPECT_THAT(broken_promises(full, facts), IsEmpty());
}

TEST(DemoVerdict, TheTableSaysWhichLayersRanInBlocks) {
  EXPECT_THAT(
      summary_table(options(), good_facts()),
      HasSubstr("layers 0-1 in blocks, layer 2 full; gradients reached 75 % of the key blocks\n"));
}

TEST(DemoVerdict, WantsAResumeFromACommittedCheckpoint) {
  DemoFacts facts = good_facts();
  facts.restarts[0].resumed_from.clear();
  EXPECT_THAT(broken_promises(options(), facts), ElementsAre(HasSubstr("did not resume")));
}

TEST(DemoVerdict, PassesTheLaunchersReasonOn) {
  DemoFacts facts = good_facts();
  facts.launcher_exit_code = 93;
  facts.launcher_reason = "no progress in 3 restarts";
  EXPECT_THAT(broken_promises(options(), facts), ElementsAre(HasSubstr("no progress")));
}

TEST(DemoSummary, ShowsFiguresWithUnitsAndPlaces) {
  const std::string table = summary_table(options(), good_facts());
  EXPECT_THAT(table, HasSubstr("5.600 -> 2.100 nats per byte"));
  EXPECT_THAT(table, HasSubstr("1 234 567 stored"));
  EXPECT_THAT(table, HasSubstr("training again after 1.50 s, from step-50.gen-1"));
  EXPECT_THAT(table, HasSubstr("runs/one/muster.db"));
}

}  // namespace
}  // namespace muster::demo
