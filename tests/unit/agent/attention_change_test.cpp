// SPDX-License-Identifier: Apache-2.0
// Resuming under another attention schedule, and attention in a checkpoint.
#include "agent/src/attention/change.h"
#include "agent/src/attention/state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster::agent {
namespace {

using ::testing::HasSubstr;

AttentionSchedule parsed(const std::string& text) {
  return AttentionSchedule::parse(text).value();
}

std::optional<AttentionDifference> difference(
    const std::string& before, const std::string& now, std::int64_t step) {
  return difference_from(parsed(before), parsed(now), 4, step);
}

TEST(AttentionChange, TheSameAttentionWrittenDifferentlyIsNoChange) {
  EXPECT_FALSE(difference("moba:64,3,last_full=1", "layers 0-2 moba 64 3", 0));
  EXPECT_FALSE(difference("full", "layers 1,2 full", 0));
  EXPECT_FALSE(difference("moba:64,3", "steps 0:50 moba 64 3\nsteps 50: moba 64 3", 0));
}

TEST(AttentionChange, StepsThatHaveRunDoNotMatter) {
  EXPECT_FALSE(difference("steps 0:10 moba 64 3", "steps 0:5 moba 64 3", 10));
  EXPECT_TRUE(difference("steps 0:10 moba 64 3", "steps 0:5 moba 64 3", 9));
}

TEST(AttentionChange, AChangeFarAheadIsFoundAndPlaced) {
  const auto found = difference("moba:64,3", "moba 64 3\nlast_full 0", 7);
  EXPECT_FALSE(found);
  const auto later =
      difference("moba:64,3", "steps 0:9000 moba 64 3\nsteps 9000: layers 0,1,3 moba 64 3", 7);
  ASSERT_TRUE(later);
  EXPECT_EQ(later->step, 9000);
  EXPECT_EQ(later->layer, 2);
  EXPECT_EQ(label_of(later->before), "moba:64,3");
  EXPECT_EQ(label_of(later->now), "full");
}

TEST(AttentionChange, BlockSizeNumberOfBlocksAndFlagsAreAllPartOfTheAttention) {
  EXPECT_TRUE(difference("moba:64,3", "moba:32,3", 0));
  EXPECT_TRUE(difference("moba:64,3", "moba:64,4", 0));
  EXPECT_TRUE(difference("moba:64,3", "moba 64 3 neighbour", 0));
  EXPECT_TRUE(difference("moba:64,3", "moba 64 3 shared", 0));
}

TEST(AttentionChange, ALayerUsesBlocksOnlyWhereSomeStepSaysSo) {
  const AttentionSchedule schedule =
      parsed("steps 0:10 layers 0,3 moba 64 3\nsteps 10: layers 1 moba 64 3\nlast_full 1");
  EXPECT_TRUE(uses_moba(schedule, 0, 4));
  EXPECT_TRUE(uses_moba(schedule, 1, 4));
  EXPECT_FALSE(uses_moba(schedule, 2, 4));
  EXPECT_FALSE(uses_moba(schedule, 3, 4));  // last_full wins.
}

TEST(AttentionLabel, IsTheModeWithoutItsReason) {
  EXPECT_EQ(label_of({std::nullopt, AttentionReason::kShortSequence}), "full");
  EXPECT_EQ(label_of({kernels::MobaOptions{.block = 512, .top_k = 3}}), "moba:512,3");
  EXPECT_EQ(label_of({kernels::MobaOptions{512, 3, true, true}}), "moba:512,3,neighbour,shared");
}

TEST(AttentionState, SurvivesACheckpoint) {
  AttentionState state;
  state.schedule = parsed("steps 0:9 layers 0 moba 64 3 shared\nlast_full 1");
  state.modes = {
      {std::nullopt, AttentionReason::kLastFull},
      {kernels::MobaOptions{512, 3, true, true}, AttentionReason::kRule},
      {kernels::MobaOptions{64, 2}, AttentionReason::kRule}};
  TextValues values;
  write_attention(state, values);
  const auto back = read_attention(values);
  ASSERT_TRUE(back.ok()) << back.status().to_string();
  EXPECT_EQ(back->schedule->to_string(), state.schedule->to_string());
  ASSERT_EQ(back->modes.size(), 3U);
  for (std::size_t layer = 0; layer < 3; ++layer) {
    EXPECT_TRUE(same_attention(back->modes[layer], state.modes[layer])) << layer;
  }
}

TEST(AttentionState, ACheckpointThatSaysNothingIsFull) {
  TextValues values;
  write_attention({}, values);
  EXPECT_TRUE(values.empty());
  const auto back = read_attention(values);
  ASSERT_TRUE(back.ok());
  EXPECT_FALSE(back->schedule);
  EXPECT_FALSE(schedule_change(back->schedule, parsed("full"), 4, 0));
  EXPECT_TRUE(schedule_change(back->schedule, parsed("moba:64,3"), 4, 0));
}

TEST(AttentionState, ADamagedValueIsNamed) {
  EXPECT_THAT(
      read_attention({{"agent.attention_schedule", "moba:x"}}).status().message(),
      HasSubstr("agent.attention_schedule"));
  const Status modes = read_attention({{"agent.attention_modes", "full\nhalf\n"}}).status();
  EXPECT_EQ(modes.code(), StatusCode::kDataLoss);
  EXPECT_THAT(modes.message(), HasSubstr("half"));
}

}  // namespace
}  // namespace muster::agent
