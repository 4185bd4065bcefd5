#include "lane_ranks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace muster::agent {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr float kNanF = std::numeric_limits<float>::quiet_NaN();

TEST(Lanes, SumsAndMaximaComeBackPerField) {
  LocalLanes a = healthy_rank();
  LocalLanes b = healthy_rank();
  b.local_loss = 3.5;
  b.max_logits = {{9.0F, -1.0F}};
  a.update.resize(1);
  a.update[0].element_count = 4;
  a.update[0].update_squared_sum = 1.5;
  a.update[0].parameter_abs_max = 2.0;
  b.update.resize(1);
  b.update[0].element_count = 6;
  b.update[0].update_squared_sum = 2.5;
  b.update[0].parameter_abs_max = 1.0;
  const ReducedLanes lanes = reduce(small_layout(), {a, b});
  EXPECT_EQ(lanes.squared_norm, std::vector<double>{8.0});
  EXPECT_EQ(lanes.loss_sum, 40.0);
  EXPECT_EQ(lanes.token_count, 20.0);
  EXPECT_EQ(lanes.local_loss_max, 3.5);
  EXPECT_EQ(lanes.expert_counts[0], (std::vector<double>{2.0, 4.0, 6.0}));
  EXPECT_EQ(lanes.max_logits[0], (std::vector<double>{9.0, 7.0}));
  EXPECT_EQ(lanes.update[0].element_count, 10);
  EXPECT_EQ(lanes.update[0].update_squared_sum, 4.0);
  EXPECT_EQ(lanes.update[0].parameter_abs_max, 2.0);
  EXPECT_FALSE(lanes.nonfinite);
}

TEST(Lanes, MinimumOfCountersSurvivesMaxReduction) {
  LocalLanes a = healthy_rank();
  LocalLanes b = healthy_rank();
  a.armed_command = 9;
  b.armed_command = 4;
  a.prepared_checkpoint = 2;
  b.prepared_checkpoint = 3;
  b.failed_checkpoint = 5;
  a.replica_digest = (std::uint64_t{1} << 52U) - 1;
  b.replica_digest = 17;
  b.generation = 2;
  const ReducedLanes lanes = reduce(small_layout(), {a, b});
  EXPECT_EQ(lanes.armed_command_min, 4U);
  EXPECT_EQ(lanes.armed_command_max, 9U);
  EXPECT_EQ(lanes.prepared_checkpoint_min, 2);
  EXPECT_EQ(lanes.failed_checkpoint_max, 5);
  EXPECT_EQ(lanes.replica_digest_max, (std::uint64_t{1} << 52U) - 1);
  EXPECT_EQ(lanes.replica_digest_min, 17U);
  EXPECT_EQ(lanes.generation_min, 2);
  EXPECT_EQ(lanes.generation_max, 3);
}

TEST(Lanes, NoNanEverEntersALane) {
  LocalLanes bad = healthy_rank();
  bad.loss_sum = std::nan("");
  bad.local_loss = kInf;
  bad.squared_norm = {std::nan("")};
  bad.max_logits = {{kNanF, kNanF}};
  bad.update.resize(1);
  bad.update[0].momentum_sum = std::nan("");
  bad.update[0].momentum_abs_max = kInf;
  const LaneLayout layout = small_layout();
  std::vector<double> sum(layout.sum_size());
  std::vector<double> max(layout.max_size());
  encode(layout, bad, sum, max);
  for (const double lane : sum) {
    EXPECT_TRUE(std::isfinite(lane));
  }
  for (const double lane : max) {
    EXPECT_FALSE(std::isnan(lane));
  }
}

TEST(Lanes, NanLossOfOneRankRaisesTheFlagForAll) {
  LocalLanes bad = healthy_rank();
  bad.loss_sum = std::nan("");
  const ReducedLanes lanes = reduce(small_layout(), {healthy_rank(), bad, healthy_rank()});
  EXPECT_TRUE(lanes.nonfinite);
  EXPECT_TRUE(lanes.nonfinite_loss);
  EXPECT_FALSE(lanes.nonfinite_logit);
}

TEST(Lanes, NanLogitNamesItsHeadAsInfinity) {
  LocalLanes bad = healthy_rank();
  bad.max_logits = {{kNanF, 1.0F}};
  const ReducedLanes lanes = reduce(small_layout(), {bad, healthy_rank()});
  EXPECT_TRUE(lanes.nonfinite_logit);
  EXPECT_EQ(lanes.max_logits[0][0], kInf);
  EXPECT_EQ(lanes.max_logits[0][1], 7.0);
}

TEST(Lanes, HeadThatNoRankSawIsMinusInfinityAndHealthy) {
  LocalLanes blind = healthy_rank();
  blind.max_logits = {};
  const ReducedLanes lanes = reduce(small_layout(), {blind});
  EXPECT_EQ(lanes.max_logits[0][0], -kInf);
  EXPECT_FALSE(lanes.nonfinite);
}

TEST(Lanes, CommandDigestCoversOnlyTheRangeThatRuns) {
  const Command first = command(1, CommandKind::kStop);
  Command second = command(2, CommandKind::kSetQkClipThreshold, 50);
  const std::vector<Command> list{first, second};
  const std::uint64_t digest = command_digest(list, 1, 2);
  EXPECT_EQ(digest, command_digest(std::vector{second}, 0, 5));
  EXPECT_EQ(command_digest(list, 2, 9), 0U);
  EXPECT_LT(digest, std::uint64_t{1} << 52U);
  second.argument = 51;
  EXPECT_NE(digest, command_digest(std::vector{second}, 0, 5));
}

}  // namespace
}  // namespace muster::agent
