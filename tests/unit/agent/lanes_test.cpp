// SPDX-License-Identifier: Apache-2.0
#include "tests/support/floats.h"
#include "tests/unit/agent/lane_ranks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

namespace muster::agent {
namespace {

using muster::test::kInfinity;
using muster::test::kNanF;

TEST(Lanes, SumsAndMaximaComeBackPerField) {
  LocalLanes a = healthy_rank();
  LocalLanes b = healthy_rank();
  b.local_loss = 3.5;
  b.max_logits = {{9.0F, -1.0F}};
  a.update.resize(1);
  a.update[0].element_count = 4;
  a.update[0].elements.update_squared_sum = 1.5;
  a.update[0].elements.parameter_abs_max = 2.0;
  b.update.resize(1);
  b.update[0].element_count = 6;
  b.update[0].elements.update_squared_sum = 2.5;
  b.update[0].elements.parameter_abs_max = 1.0;
  const ReducedLanes lanes = reduce(small_layout(), {a, b});
  EXPECT_EQ(lanes.squared_norm, std::vector<double>{8.0});
  EXPECT_EQ(lanes.loss_sum, 40.0);
  EXPECT_EQ(lanes.token_count, 20.0);
  EXPECT_EQ(lanes.local_loss_max, 3.5);
  EXPECT_EQ(lanes.expert_counts[0], (std::vector<double>{2.0, 4.0, 6.0}));
  EXPECT_EQ(lanes.max_logits[0], (std::vector<double>{9.0, 7.0}));
  EXPECT_EQ(lanes.update[0].element_count, 10);
  EXPECT_EQ(lanes.update[0].elements.update_squared_sum, 4.0);
  EXPECT_EQ(lanes.update[0].elements.parameter_abs_max, 2.0);
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

// Every field, so that none is written to one lane and read from another.
TEST(Lanes, EveryUpdateStatisticComesBackUnderItsName) {
  LocalLanes rank = healthy_rank();
  rank.update.resize(1);
  optimizer::GroupUpdateStatistics& u = rank.update[0];
  u.element_count = 1;
  u.blocks.block_count = 2;
  u.blocks.nonfinite_blocks = 3;
  u.blocks.recomputed_blocks = 4;
  u.elements.second_moment_tiny_count = 5;
  u.elements.withheld_count = 6;
  u.elements.lost_count = 7;
  double next = 10;
  for (double* field :
       {&u.elements.update_squared_sum,
        &u.elements.parameter_squared_sum,
        &u.elements.parameter_abs_max,
        &u.elements.momentum_squared_sum,
        &u.elements.momentum_sum,
        &u.elements.momentum_abs_max,
        &u.elements.second_moment_sum,
        &u.elements.second_moment_squared_sum,
        &u.elements.second_moment_abs_max,
        &u.elements.update_abs_max,
        &u.elements.gradient_squared_sum,
        &u.elements.momentum_gradient_sum,
        &u.elements.second_moment_before_sum,
        &u.elements.staleness_sum,
        &u.elements.momentum_code_change_sum,
        &u.elements.momentum_code_motion_sum,
        &u.elements.second_moment_code_change_sum,
        &u.elements.second_moment_code_motion_sum,
        &u.blocks.direction_norm_sum,
        &u.blocks.effective_rank_sum,
        &u.blocks.effective_rank_min,
        &u.blocks.orthogonality_error_sum,
        &u.blocks.orthogonality_error_max}) {
    *field = next++;
  }
  static_assert(sizeof u == (7 + 23) * 8, "a new member belongs into the list above");
  const optimizer::GroupUpdateStatistics back = reduce(small_layout(), {rank}).update[0];
  EXPECT_EQ(std::memcmp(&back, &u, sizeof u), 0);  // No padding: 8-byte fields only.
}

using Update = optimizer::GroupUpdateStatistics;
using Member = double& (*)(Update&);

const std::vector<Member> kSums{
    [](Update& u) -> double& { return u.elements.update_squared_sum; },
    [](Update& u) -> double& { return u.elements.parameter_squared_sum; },
    [](Update& u) -> double& { return u.elements.momentum_squared_sum; },
    [](Update& u) -> double& { return u.elements.momentum_sum; },
    [](Update& u) -> double& { return u.elements.second_moment_sum; },
    [](Update& u) -> double& { return u.elements.second_moment_squared_sum; },
    [](Update& u) -> double& { return u.elements.gradient_squared_sum; },
    [](Update& u) -> double& { return u.elements.momentum_gradient_sum; },
    [](Update& u) -> double& { return u.elements.second_moment_before_sum; },
    [](Update& u) -> double& { return u.elements.staleness_sum; },
    [](Update& u) -> double& { return u.elements.momentum_code_change_sum; },
    [](Update& u) -> double& { return u.blocks.direction_norm_sum; },
    [](Update& u) -> double& { return u.blocks.effective_rank_sum; },
    [](Update& u) -> double& { return u.blocks.orthogonality_error_sum; }};
const std::vector<Member> kExtremes{
    [](Update& u) -> double& { return u.elements.parameter_abs_max; },
    [](Update& u) -> double& { return u.elements.momentum_abs_max; },
    [](Update& u) -> double& { return u.elements.second_moment_abs_max; },
    [](Update& u) -> double& { return u.elements.update_abs_max; },
    [](Update& u) -> double& { return u.blocks.orthogonality_error_max; },
    [](Update& u) -> double& { return u.blocks.effective_rank_min; }};

LocalLanes rank_with(Member member, double value) {
  LocalLanes rank = healthy_rank();
  rank.update.resize(1);
  rank.update[0].blocks.block_count = 1;
  member(rank.update[0]) = value;
  return rank;
}

// Lanes of three ranks of which the middle one has a value that is not finite.
ReducedLanes reduce_with(Member member, double value) {
  return reduce(
      small_layout(), {rank_with(member, 2.0), rank_with(member, value), rank_with(member, 3.0)});
}

TEST(Lanes, AStatisticThatIsNotFiniteIsLeftOutOfItsSumAndJudgesNoStep) {
  for (const double value : {std::nan(""), kInfinity, -kInfinity}) {
    for (const Member member : kSums) {
      ReducedLanes lanes = reduce_with(member, value);
      EXPECT_FALSE(lanes.nonfinite);
      EXPECT_EQ(member(lanes.update[0]), 5.0);
    }
  }
}

TEST(Lanes, AnExtremeThatIsNotFiniteWinsAsNanAndJudgesNoStep) {
  for (const double value : {std::nan(""), kInfinity, -kInfinity}) {
    for (const Member member : kExtremes) {
      ReducedLanes lanes = reduce_with(member, value);
      EXPECT_FALSE(lanes.nonfinite);
      EXPECT_TRUE(std::isnan(member(lanes.update[0])));
    }
  }
}

TEST(Lanes, TheSmallestEffectiveRankIsOfTheRanksThatHaveMatrices) {
  const auto rank_of = [](std::int64_t blocks, double smallest) {
    LocalLanes rank = healthy_rank();
    rank.update.resize(1);
    rank.update[0].blocks.block_count = blocks;
    rank.update[0].blocks.effective_rank_min = smallest;
    return rank;
  };
  const auto smallest_of = [&](const std::vector<LocalLanes>& ranks) {
    return reduce(small_layout(), ranks).update[0].blocks.effective_rank_min;
  };
  EXPECT_EQ(smallest_of({rank_of(2, 0.75), rank_of(0, 0.0), rank_of(1, 0.25)}), 0.25);
  EXPECT_EQ(smallest_of({rank_of(0, 0.0), rank_of(0, 0.0)}), 0.0);
}

// A matrix that broke is left as it was and counted; the next step must not be skipped for it.
TEST(Lanes, AStatisticOfOneMatrixThatIsNotFiniteJudgesNoStep) {
  LocalLanes bad = healthy_rank();
  bad.update.resize(1);
  bad.update[0].blocks.block_count = 1;
  bad.update[0].blocks.orthogonality_error_sum = std::nan("");
  bad.update[0].blocks.orthogonality_error_max = kInfinity;
  bad.update[0].blocks.direction_norm_sum = kInfinity;
  bad.update[0].blocks.effective_rank_min = std::nan("");
  bad.update[0].blocks.nonfinite_blocks = 1;
  const ReducedLanes lanes = reduce(small_layout(), {bad, healthy_rank()});
  EXPECT_FALSE(lanes.nonfinite);
  EXPECT_EQ(lanes.update[0].blocks.nonfinite_blocks, 1);
  EXPECT_EQ(lanes.update[0].blocks.orthogonality_error_sum, 0.0);
}

// Layers with different numbers of heads travel in one vector, not in one rectangle.
TEST(Lanes, LayersMayHaveDifferentNumbersOfHeads) {
  LaneLayout layout = small_layout();
  layout.heads = {2, 5, 1};
  LocalLanes a = healthy_rank();
  LocalLanes b = healthy_rank();
  a.max_logits = {{1, 2}, {3, 4, 5, 6, 7}, {8}};
  b.max_logits = {{9, -9}, {-9, 9, -9, -9, 9}, {-9}};
  const ReducedLanes lanes = reduce(layout, {a, b});
  EXPECT_EQ(lanes.max_logits, (std::vector<std::vector<double>>{{9, 2}, {3, 9, 5, 6, 9}, {8}}));
  EXPECT_EQ(layout.max_size() - small_layout().max_size(), 6U);
}

TEST(Lanes, NoNanEverEntersALane) {
  LocalLanes bad = healthy_rank();
  bad.loss_sum = std::nan("");
  bad.local_loss = kInfinity;
  bad.squared_norm = {std::nan("")};
  bad.max_logits = {{kNanF, kNanF}};
  bad.update.resize(1);
  bad.update[0].elements.momentum_sum = std::nan("");
  bad.update[0].elements.momentum_abs_max = kInfinity;
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

TEST(Lanes, OneElementOfAGradientThatIsNotFiniteIsEnoughForTheFlag) {
  LocalLanes bad = healthy_rank();
  bad.nonfinite_count = 1;
  EXPECT_TRUE(reduce(small_layout(), {healthy_rank(), bad}).nonfinite);
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
  EXPECT_EQ(lanes.max_logits[0][0], kInfinity);
  EXPECT_EQ(lanes.max_logits[0][1], 7.0);
}

TEST(Lanes, HeadThatNoRankSawIsMinusInfinityAndHealthy) {
  LocalLanes blind = healthy_rank();
  blind.max_logits = {};
  const ReducedLanes lanes = reduce(small_layout(), {blind});
  EXPECT_EQ(lanes.max_logits[0][0], -kInfinity);
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
