// SPDX-License-Identifier: Apache-2.0
#include <muster/agent/attention_schedule.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace muster::agent {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

AttentionSchedule parsed(const std::string& text) {
  auto schedule = AttentionSchedule::parse(text);
  EXPECT_TRUE(schedule.ok()) << schedule.status().to_string();
  return schedule.ok() ? *schedule : AttentionSchedule{};
}

std::string refusal(const std::string& text) {
  return AttentionSchedule::parse(text).status().message();
}

AttentionMode mode(const AttentionSchedule& schedule, std::int64_t layer, std::int64_t step) {
  return schedule.mode_at({.layer = layer, .layers = 32, .step = step, .sequence = 1 << 20});
}

TEST(AttentionSchedule, FullIsFullEverywhere) {
  const AttentionSchedule schedule = parsed("full");
  EXPECT_FALSE(mode(schedule, 0, 0).moba.has_value());
  EXPECT_EQ(mode(schedule, 31, 1'000'000).reason, AttentionReason::kNotNamed);
}

TEST(AttentionSchedule, TheShortFormNamesAllLayersButTheLastFullOnes) {
  const AttentionSchedule schedule = parsed("moba:4096,12,last_full=3");
  ASSERT_TRUE(mode(schedule, 28, 5).moba.has_value());
  EXPECT_EQ(mode(schedule, 28, 5).moba->block, 4096);
  EXPECT_EQ(mode(schedule, 28, 5).moba->top_k, 12);
  EXPECT_FALSE(mode(schedule, 29, 5).moba.has_value());
  EXPECT_EQ(mode(schedule, 29, 5).reason, AttentionReason::kLastFull);
}

TEST(AttentionSchedule, RulesHoldForTheirStepsAndLayersOnly) {
  const AttentionSchedule schedule = parsed(
      "# a stage recipe\n"
      "steps 0:9000 layers 0-28 moba 4096 12\n"
      "\n"
      "steps 9000: layers 0,2,4-7 moba 512 3 neighbour shared  # to the end\n");
  EXPECT_EQ(mode(schedule, 0, 0).moba->block, 4096);
  EXPECT_EQ(mode(schedule, 28, 8999).moba->block, 4096);
  EXPECT_FALSE(mode(schedule, 29, 0).moba.has_value());
  EXPECT_EQ(mode(schedule, 2, 9000).moba->block, 512);
  EXPECT_TRUE(mode(schedule, 7, 9000).moba->force_neighbour);
  EXPECT_TRUE(mode(schedule, 7, 9000).moba->share_in_group);
  EXPECT_FALSE(mode(schedule, 3, 9000).moba.has_value());
  EXPECT_FALSE(mode(schedule, 8, 1'000'000).moba.has_value());
}

TEST(AttentionSchedule, ASequenceOfNoMoreThanTopKBlocksIsFullAndSaysWhy) {
  const AttentionSchedule schedule = parsed("moba:64,3");
  const auto at = [&](std::int64_t sequence) {
    return schedule.mode_at({.layer = 0, .layers = 1, .step = 0, .sequence = sequence});
  };
  EXPECT_FALSE(at(192).moba.has_value());
  EXPECT_EQ(at(192).reason, AttentionReason::kShortSequence);
  EXPECT_THAT(to_string(at(192)), HasSubstr("sequence is short"));
  EXPECT_TRUE(at(193).moba.has_value());
  EXPECT_EQ(at(193).reason, AttentionReason::kRule);
}

TEST(AttentionSchedule, SizesWhoseProductDoesNotFitAreCompared) {
  const AttentionSchedule schedule = parsed("moba:9223372036854775807,2147483647");
  EXPECT_EQ(mode(schedule, 0, 0).reason, AttentionReason::kShortSequence);
}

TEST(AttentionSchedule, TheTextOfAScheduleReadsBackToTheSameText) {
  for (const char* text :
       {"full",
        "moba:512,3",
        "moba:512,3,last_full=2",
        "moba 512 3 neighbour\n",
        "moba 512 3 shared\nlast_full 4\n",
        "last_full 2\n",
        "steps 0:9000 layers 0-28 moba 4096 12\nsteps 9000: layers 1,3-5 full\nlast_full 1\n"}) {
    EXPECT_EQ(parsed(text).to_string(), text);
  }
}

TEST(AttentionSchedule, TheSameScheduleWrittenAnotherWayHasTheSameText) {
  EXPECT_EQ(
      parsed("  layers all moba 512 3\r\n last_full 2").to_string(), "moba:512,3,last_full=2");
  EXPECT_EQ(parsed("# nothing special\nsteps 0: full\n").to_string(), "full");
}

TEST(AttentionSchedule, ALayerNamedTwiceForOneStepIsRefusedWithBothRules) {
  EXPECT_THAT(
      refusal("steps 0:10 layers 0-3 moba 64 2\nsteps 9:20 layers 3 full\n"),
      AllOf(
          HasSubstr("'steps 0:10 layers 0-3 moba 64 2'"),
          HasSubstr("'steps 9:20 layers 3 full'"),
          HasSubstr("step 9")));
  EXPECT_THAT(refusal("moba 64 2\nlayers 7 full\n"), HasSubstr("name the same layer"));
  EXPECT_THAT(refusal("layers 0-3,2 full"), HasSubstr("names layer 2 twice"));
  EXPECT_EQ(refusal("steps 0:10 layers 3 moba 64 2\nsteps 10:20 layers 3 full\n"), "");
  EXPECT_EQ(refusal("layers 0-2 moba 64 2\nlayers 3 moba 32 2\n"), "");
}

TEST(AttentionSchedule, AnErrorNamesItsLineAndWhatToWrite) {
  EXPECT_THAT(
      refusal("layers 0 full\n# fine\nstps 0:3 full\n"),
      AllOf(HasSubstr("line 3"), HasSubstr("'stps'"), HasSubstr("write [steps BEGIN:END]")));
  EXPECT_THAT(refusal("steps 3 full"), HasSubstr("'3' is not BEGIN:END; write for example 0:9000"));
  EXPECT_THAT(refusal("layers 1,x full"), HasSubstr("'x', which is not a layer"));
  EXPECT_THAT(refusal("moba 64"), HasSubstr("moba BLOCK TOPK"));
  EXPECT_THAT(refusal("moba 64 2 neighbour neighbour"), HasSubstr("'neighbour'"));
  EXPECT_THAT(refusal("moba:64"), HasSubstr("write moba:BLOCK,TOPK"));
  EXPECT_THAT(refusal("moba:64,-2"), HasSubstr("'-2' must be whole numbers"));
  EXPECT_THAT(refusal("moba:64,2,last_full=x"), HasSubstr("last_full 'x'"));
  EXPECT_THAT(refusal("moba:64,2,last_full=1\nlast_full 1"), HasSubstr("line 2"));
  EXPECT_THAT(refusal("steps 0:3"), HasSubstr("ends before full or moba"));
  for (const char* empty : {"", "\n", "# only a comment"}) {
    EXPECT_THAT(refusal(empty), HasSubstr("no rule found; write full")) << empty;
  }
}

TEST(AttentionSchedule, EmptyStepsRangesAndSizesAreRefused) {
  EXPECT_THAT(refusal("full\nsteps 4:4 full"), AllOf(HasSubstr("line 2"), HasSubstr("no step")));
  EXPECT_THAT(refusal("layers 4-3 full"), HasSubstr("smaller layer first"));
  EXPECT_THAT(refusal("moba:0,3"), HasSubstr("at least 1"));
  EXPECT_THAT(refusal("layers 0 moba 64 0"), HasSubstr("at least 1"));
}

TEST(AttentionSchedule, ALayerThatTheModelDoesNotHaveIsRefused) {
  EXPECT_THAT(
      parsed("layers 2-4 moba 64 2").validate(4).message(),
      AllOf(HasSubstr("names layer 4"), HasSubstr("has 4 layers")));
  EXPECT_THAT(parsed("moba:64,2,last_full=5").validate(4).message(), HasSubstr("last_full 5"));
  EXPECT_TRUE(parsed("moba:64,2,last_full=4").validate(4).ok());
}

TEST(AttentionSchedule, AScheduleMadeInCodeIsHeldToTheSameRules) {
  AttentionSchedule schedule;
  schedule.rules.resize(1);
  schedule.rules[0].moba = kernels::MobaOptions{.block = 0};
  EXPECT_THAT(schedule.validate(4).message(), HasSubstr("at least 1"));
  schedule.rules[0].moba->block = 64;
  schedule.last_full = -1;
  EXPECT_THAT(schedule.validate(4).message(), HasSubstr("last_full is -1"));
}

TEST(AttentionSchedule, TheDescriptionGroupsLayersThatRunAlike) {
  EXPECT_EQ(
      parsed("steps 0:5 layers 0,1 moba 8 2\nlast_full 1").describe(4, 0, 64),
      "layers 0-1 moba 8 2, layer 2 full, layer 3 full (one of the last layers)");
  EXPECT_EQ(parsed("full").describe(2, 0, 64), "layers 0-1 full");
}

}  // namespace
}  // namespace muster::agent
