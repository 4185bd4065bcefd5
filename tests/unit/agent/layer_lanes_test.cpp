// SPDX-License-Identifier: Apache-2.0
// Lanes of single layers: block attention and expert parallelism.
#include "tests/support/floats.h"
#include "tests/unit/agent/lane_ranks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace muster::agent {
namespace {

using muster::test::kInfinity;

// Three attention layers, of which the middle one is never under block attention.
LaneLayout layout() {
  LaneLayout layout = small_layout();
  layout.heads = {2, 2, 1};
  layout.moba_heads = {2, 0, 1};
  layout.ep_layers = 2;
  return layout;
}

LocalLanes rank_of(double seed) {
  LocalLanes rank = healthy_rank();
  rank.max_logits = {{5.0F, 7.0F}, {1.0F, 2.0F}, {3.0F}};
  rank.moba.resize(3);
  double next = seed;
  for (MobaLanes& moba : rank.moba) {
    moba.gate_bound = {next, next + 1};
    moba.norm_bound = {next + 2, next + 3};
    moba.block_max_over_mean = next + 4;
    moba.blocks = next + 5;
    moba.sink_share_sum = next + 6;
    moba.sink_share_count = next + 7;
    moba.gate_margin_sum = next + 8;
    moba.gate_margin_count = next + 9;
    moba.queries_reached = next + 10;
    moba.queries = next + 11;
    moba.blocks_reached = next + 12;
    moba.reachable_blocks = next + 13;
    moba.bin_counts[0] = next + 14;
    moba.bin_counts[63] = next + 15;
    next += 100;
  }
  rank.moba[2].gate_bound.pop_back();
  rank.moba[2].norm_bound.pop_back();
  rank.ep = {{seed, seed + 1, seed + 2, seed + 3, seed + 4, seed + 5, seed + 6}, {}};
  return rank;
}

TEST(LayerLanes, EveryFieldComesBackUnderItsName) {
  const LocalLanes rank = rank_of(1);
  const ReducedLanes lanes = reduce(layout(), {rank});
  ASSERT_EQ(lanes.moba.size(), 3U);
  EXPECT_EQ(lanes.moba[0], rank.moba[0]);
  EXPECT_EQ(lanes.moba[1], MobaLanes{});
  EXPECT_EQ(lanes.moba[2], rank.moba[2]);
  EXPECT_EQ(lanes.ep, rank.ep);
  EXPECT_FALSE(lanes.nonfinite);
}

TEST(LayerLanes, CountsAddUpAndBoundsAreTheLargestOverRanks) {
  LocalLanes small = rank_of(1);
  LocalLanes large = rank_of(1000);
  const ReducedLanes lanes = reduce(layout(), {small, large, small});
  const MobaLanes& moba = lanes.moba[0];
  EXPECT_EQ(moba.gate_bound, (std::vector<double>{1000, 1001}));
  EXPECT_EQ(moba.norm_bound, (std::vector<double>{1002, 1003}));
  EXPECT_EQ(moba.block_max_over_mean, 1004);
  EXPECT_EQ(moba.blocks, 1005);
  EXPECT_EQ(moba.sink_share_sum, 7 + 7 + 1006);
  EXPECT_EQ(moba.gate_margin_count, 10 + 10 + 1009);
  EXPECT_EQ(moba.queries, 12 + 12 + 1011);
  EXPECT_EQ(moba.bin_counts[63], 16 + 16 + 1015);
  EXPECT_EQ(lanes.ep[0].rank_imbalance, 1000);
  EXPECT_EQ(lanes.ep[0].copies, 2 + 2 + 1001);
  EXPECT_EQ(lanes.ep[0].bytes_out, 7 + 7 + 1006);
}

TEST(LayerLanes, ALayerThatIsNeverUnderBlockAttentionCostsNoLanes) {
  LaneLayout full = layout();
  full.moba_heads = {};
  full.ep_layers = 0;
  LaneLayout middle = full;
  middle.moba_heads = {0, 0, 0};
  EXPECT_EQ(middle.sum_size(), full.sum_size());
  EXPECT_EQ(middle.max_size(), full.max_size());
  EXPECT_GT(layout().sum_size(), full.sum_size());
  LocalLanes rank = healthy_rank();
  rank.max_logits = {};
  const ReducedLanes lanes = reduce(full, {rank});
  EXPECT_TRUE(lanes.moba.empty());
  EXPECT_TRUE(lanes.ep.empty());
}

TEST(LayerLanes, ARankThatRecordedNothingTakesPartAllTheSame) {
  LocalLanes silent = healthy_rank();
  silent.max_logits = {};
  const LocalLanes rank = rank_of(1);
  const ReducedLanes lanes = reduce(layout(), {silent, rank});
  EXPECT_EQ(lanes.moba[0], rank.moba[0]);
  EXPECT_EQ(lanes.ep, rank.ep);
}

// Even where the maximum next to them looks healthy.
TEST(LayerLanes, RowsThatAreNotFiniteOnOneRankAreANanEventOnAll) {
  LocalLanes bad = rank_of(1);
  bad.moba[2].nonfinite_rows = 3;
  const ReducedLanes lanes = reduce(layout(), {rank_of(1), bad});
  EXPECT_TRUE(lanes.nonfinite);
  EXPECT_TRUE(lanes.nonfinite_logit);
  EXPECT_EQ(lanes.moba[2].nonfinite_rows, 3);
  SharedState state;
  EXPECT_TRUE(decide(lanes, {}, DecideOptions{}, state).skip);
}

// Statistics of the gate alone skip no step and spoil no other rank's numbers.
TEST(LayerLanes, AStatisticThatIsNotFiniteIsLeftOutOfItsSum) {
  LocalLanes bad = rank_of(1);
  bad.moba[0].gate_margin_sum = std::nan("");
  bad.moba[0].sink_share_sum = kInfinity;
  bad.moba[0].gate_bound[0] = kInfinity;
  const ReducedLanes lanes = reduce(layout(), {rank_of(1), bad});
  EXPECT_FALSE(lanes.nonfinite);
  EXPECT_EQ(lanes.moba[0].gate_margin_sum, 9);
  EXPECT_EQ(lanes.moba[0].sink_share_sum, 7);
  EXPECT_EQ(lanes.moba[0].gate_bound[0], kInfinity);
}

TEST(LayerLanes, NothingOfTheStepBeforeIsLeftInStorageThatIsUsedAgain) {
  const auto decode_of = [](const LocalLanes& rank, ReducedLanes& out) {
    std::vector<double> sum(layout().sum_size());
    std::vector<double> max(layout().max_size());
    encode(layout(), rank, sum, max);
    decode(layout(), sum, max, out);
  };
  ReducedLanes used;
  decode_of(rank_of(1000), used);
  decode_of(rank_of(1), used);
  ReducedLanes fresh;
  decode_of(rank_of(1), fresh);
  EXPECT_EQ(used.moba, fresh.moba);
  EXPECT_EQ(used.ep, fresh.ep);
  EXPECT_EQ(used.max_logits, fresh.max_logits);
  EXPECT_EQ(used.expert_counts, fresh.expert_counts);
  EXPECT_EQ(used.squared_norm, fresh.squared_norm);
}

}  // namespace
}  // namespace muster::agent
