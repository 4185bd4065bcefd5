// SPDX-License-Identifier: Apache-2.0
#include "trainer/moe_lm/src/options.h"

#include "trainer/moe_lm/src/command_line.h"

#include <muster/agent/agent.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace muster::moe_lm {
namespace {

using ::testing::HasSubstr;

std::string refusal(TrainOptions options, int world_size) {
  choose_ep_size(options, world_size);
  return validate(options, world_size).message();
}

TEST(MoeLmOptions, DefaultsFitOneTwoAndFourRanks) {
  for (const int world : {1, 2, 4}) {
    EXPECT_EQ(refusal(TrainOptions{}, world), "");
  }
}

TEST(MoeLmOptions, PutsTwoRanksInAnExpertGroupWhereThatFits) {
  TrainOptions options;
  choose_ep_size(options, 4);
  EXPECT_EQ(options.ep_size, 2);
  options.ep_size = 0;
  choose_ep_size(options, 3);
  EXPECT_EQ(options.ep_size, 1);
}

TEST(MoeLmOptions, RefusesAWorldThatDoesNotFitTheBatch) {
  EXPECT_THAT(
      refusal(TrainOptions{}, 3), HasSubstr("--batch 16 cannot be divided by the world size 3"));
}

TEST(MoeLmOptions, RefusesAWorldThatDoesNotFitTheExpertGroups) {
  TrainOptions options;
  options.ep_size = 4;
  EXPECT_THAT(refusal(options, 2), HasSubstr("world size 2 does not fit the model"));
}

TEST(MoeLmOptions, RefusesExpertsThatCannotBeSpread) {
  TrainOptions options;
  options.model.experts = 6;
  options.ep_size = 4;
  EXPECT_THAT(refusal(options, 4), HasSubstr("--experts 6 cannot be divided by --ep-size 4"));
}

TEST(MoeLmOptions, RefusesMicroBatchesThatDoNotDivideARanksPart) {
  TrainOptions options;
  options.micro_batches = 3;
  EXPECT_THAT(refusal(options, 4), HasSubstr("--micro-batches 3"));
}

TEST(MoeLmOptions, RefusesHeadsOfAnOddSize) {
  TrainOptions options;
  options.model.d_model = 12;
  EXPECT_THAT(refusal(options, 1), HasSubstr("--d-model 12 cannot be divided by --heads 4"));
}

TEST(MoeLmOptions, RefusesAFaultOnARankThatIsNotThere) {
  TrainOptions options;
  options.inject_kill = FaultPoint{4, 10};
  EXPECT_THAT(refusal(options, 4), HasSubstr("--inject-kill names rank 4"));
}

TEST(MoeLmOptions, RefusesNumbersThatWouldBeTakenForOff) {
  TrainOptions options;
  options.qk_clip_tau = -1;
  EXPECT_THAT(refusal(options, 1), HasSubstr("--qk-clip-tau must be 0 (off) or more"));
  options = {};
  options.checkpoint_interval = -3;
  EXPECT_THAT(refusal(options, 1), HasSubstr("--checkpoint-interval must be 0"));
}

TEST(MoeLmOptions, ParsesFaultPoints) {
  EXPECT_EQ(parse_fault_point("2:40")->rank, 2);
  EXPECT_EQ(parse_fault_point("2:40")->step, 40);
  for (const char* bad : {"", "2", "2:", ":4", "-1:4", "2:-4", "2:4x", "a:b"}) {
    EXPECT_FALSE(parse_fault_point(bad).has_value()) << bad;
  }
}

CommandLine parse(std::vector<const char*> words) {
  words.insert(words.begin(), "moe_lm");
  return parse_command_line(static_cast<int>(words.size()), words.data());
}

TEST(MoeLmCommandLine, ReadsItsFlags) {
  const CommandLine line =
      parse({"--data", "x.txt", "--steps", "12", "--inject-nan", "1:5", "--leave-out-batch", "3"});
  ASSERT_FALSE(line.exit_code.has_value());
  EXPECT_EQ(line.options.data, "x.txt");
  EXPECT_EQ(line.options.steps, 12);
  EXPECT_EQ(line.options.inject_nan->step, 5);
  EXPECT_FALSE(line.options.inject_kill.has_value());
  EXPECT_EQ(line.options.leave_out_batch, 3);
}

TEST(MoeLmCommandLine, RefusesAnUnknownFlagByName) {
  ::testing::internal::CaptureStderr();
  const CommandLine line = parse({"--data", "x", "--steeps", "12"});
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("--steeps"));
  EXPECT_EQ(line.exit_code, agent::kExitNeverRestart);
}

TEST(MoeLmCommandLine, RefusesAMalformedFaultPoint) {
  ::testing::internal::CaptureStderr();
  const CommandLine line = parse({"--data", "x", "--inject-kill", "two"});
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("'two' is not RANK:STEP"));
  EXPECT_NE(line.exit_code.value_or(0), 0);
}

}  // namespace
}  // namespace muster::moe_lm
