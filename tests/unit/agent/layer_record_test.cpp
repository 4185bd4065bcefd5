// SPDX-License-Identifier: Apache-2.0
// Records of single passes, added to the lanes of a layer.
#include "agent/src/verdict/layer_report.h"
#include "tests/support/floats.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <numeric>

namespace muster::agent {
namespace {

using muster::test::kNan;

class LayerRecord : public testing::Test {
 protected:
  LayerRecord() {
    lanes_.gate_bound.resize(2);
    lanes_.norm_bound.resize(2);
    lanes_.clear();
  }

  void add(const MobaRecord& record) {
    const Status status = add_record(record, lanes_, logits_);
    EXPECT_TRUE(status.ok()) << status.to_string();
  }

  // The same count for each head.
  void add_counts(const std::vector<std::int64_t>& of_head) {
    std::vector<std::int64_t> counts = of_head;
    counts.insert(counts.end(), of_head.begin(), of_head.end());
    MobaRecord record;
    record.block_counts = counts;
    record.blocks = static_cast<std::int64_t>(of_head.size());
    add(record);
  }

  MobaLanes lanes_;
  std::array<float, 2> logits_{3.0F, 4.0F};
};

TEST_F(LayerRecord, AnEmptyRecordAddsNothing) {
  const MobaLanes before = lanes_;
  add({});
  EXPECT_EQ(lanes_, before);
}

TEST_F(LayerRecord, BoundsAreTheLargestOfAllPasses) {
  const std::array<float, 2> first{1.0F, 9.0F};
  const std::array<float, 2> second{2.0F, -3.0F};
  MobaRecord record;
  record.gate_bound = first;
  add(record);
  record.gate_bound = second;
  record.norm_bound = second;
  add(record);
  EXPECT_EQ(lanes_.gate_bound, (std::vector<double>{2.0, 9.0}));
  EXPECT_EQ(lanes_.norm_bound, (std::vector<double>{2.0, -3.0}));
}

TEST_F(LayerRecord, ABoundThatIsNoNumberShowsAsInfinityWhateverCameBeforeAndAfter) {
  const std::array<float, 2> healthy{1.0F, 1.0F};
  const std::array<float, 2> bad{std::numeric_limits<float>::quiet_NaN(), 1.0F};
  for (const auto& bounds : {healthy, bad, healthy}) {
    MobaRecord record;
    record.norm_bound = bounds;
    add(record);
  }
  EXPECT_EQ(lanes_.norm_bound[0], std::numeric_limits<double>::infinity());
  EXPECT_EQ(lanes_.norm_bound[1], 1.0);
}

TEST_F(LayerRecord, AHeadWithRowsThatAreNotFiniteHasNoHealthyLogit) {
  const std::array<std::int64_t, 2> rows{0, 5};
  MobaRecord record;
  record.nonfinite_rows = rows;
  add(record);
  EXPECT_EQ(lanes_.nonfinite_rows, 5.0);
  EXPECT_EQ(logits_[0], 3.0F);
  EXPECT_TRUE(std::isnan(logits_[1]));
}

TEST_F(LayerRecord, HeadsThatLeftNothingOutAreInNoMean) {
  const std::array<double, 2> margins{kNan, 0.5};
  const std::array<double, 2> sinks{0.25, 0.75};
  MobaRecord record;
  record.gate_margin = margins;
  record.sink_share = sinks;
  add(record);
  add(record);
  EXPECT_EQ(lanes_.gate_margin_sum, 1.0);
  EXPECT_EQ(lanes_.gate_margin_count, 2.0);
  EXPECT_EQ(lanes_.sink_share_sum, 2.0);
  EXPECT_EQ(lanes_.sink_share_count, 4.0);
}

TEST_F(LayerRecord, AShortSequenceHasABinPerBlock) {
  add_counts({5, 0, 1});
  EXPECT_EQ(lanes_.blocks, 3.0);
  EXPECT_EQ(lanes_.bin_counts[0], 10.0);
  EXPECT_EQ(lanes_.bin_counts[1], 0.0);
  EXPECT_EQ(lanes_.bin_counts[2], 2.0);
  EXPECT_EQ(lanes_.block_max_over_mean, 2.5);
}

TEST_F(LayerRecord, BlocksOfALongSequenceShareTheBinsEvenly) {
  add_counts(std::vector<std::int64_t>(1000, 1));
  EXPECT_EQ(std::accumulate(lanes_.bin_counts.begin(), lanes_.bin_counts.end(), 0.0), 2000.0);
  for (const double count : lanes_.bin_counts) {
    EXPECT_GE(count, 2 * 15.0);
    EXPECT_LE(count, 2 * 16.0);
  }
  EXPECT_EQ(lanes_.block_max_over_mean, 1.0);
  add_counts(std::vector<std::int64_t>(64, 1));  // Exactly one each.
  EXPECT_EQ(std::accumulate(lanes_.bin_counts.begin(), lanes_.bin_counts.end(), 0.0), 2128.0);
}

TEST_F(LayerRecord, TheHeadOfWhichOneBlockIsChosenMostCounts) {
  const std::array<std::int64_t, 4> counts{1, 1, 0, 8};  // Heads of two blocks.
  MobaRecord record;
  record.block_counts = counts;
  record.blocks = 2;
  add(record);
  EXPECT_EQ(lanes_.block_max_over_mean, 2.0);
}

TEST_F(LayerRecord, ARecordThatDoesNotFitIsNamedAndAddsNothing) {
  const MobaLanes before = lanes_;
  const std::array<double, 3> three{};
  const std::array<std::int64_t, 4> four{1, 1, 1, 1};
  MobaRecord record;
  record.block_counts = four;
  record.blocks = 2;
  record.gate_margin = three;
  Status status = add_record(record, lanes_, logits_);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("gate_margin has 3 values, must have 2"), std::string::npos)
      << status.message();
  record.gate_margin = {};
  record.blocks = 3;
  status = add_record(record, lanes_, logits_);
  EXPECT_NE(status.message().find("block_counts has 4 values, must have 6"), std::string::npos)
      << status.message();
  record.blocks = -1;
  EXPECT_FALSE(add_record(record, lanes_, logits_).ok());
  EXPECT_EQ(lanes_, before);
}

TEST_F(LayerRecord, ReachAddsUpOverPassesAndIsNeverMoreThanThereIs) {
  ASSERT_TRUE(add_reach({10, 1, 4, 2}, lanes_).ok());
  ASSERT_TRUE(add_reach({10, 3, 4, 0}, lanes_).ok());
  using kernels::GradientCoverage;
  for (const auto& wrong : {GradientCoverage{10, 11, 4, 0}, {10, 0, 4, -1}, {0, 0, 0, 1}}) {
    EXPECT_EQ(add_reach(wrong, lanes_).code(), StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(lanes_.queries_reached, 4.0);
  EXPECT_EQ(lanes_.queries, 20.0);
  EXPECT_EQ(lanes_.blocks_reached, 2.0);
  EXPECT_EQ(lanes_.reachable_blocks, 8.0);
}

TEST(EpRecord, TheWorstPassCountsForImbalanceAndAllForTheRest) {
  parallel::EpEvent event;
  event.rank_imbalance = 3.0;
  event.copies = 2;
  event.rows = 64;
  event.bytes_out = 1000;
  EpLanes lanes;
  add_pass(event, lanes);
  event.rank_imbalance = 1.5;
  event.rows_moved = 7;
  event.pad_rows = 5;
  event.dedup_rows = 4;
  add_pass(event, lanes);
  EXPECT_EQ(lanes, (EpLanes{3.0, 4, 7, 5, 128, 4, 2000}));
}

}  // namespace
}  // namespace muster::agent
