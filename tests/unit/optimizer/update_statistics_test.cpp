// SPDX-License-Identifier: Apache-2.0
// Combining the statistics of parts of a group. Every expectation is written out, so that a wrong
// or missing row in a table fails here.
#include <muster/optimizer/update_statistics.h>

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace muster::optimizer {
namespace {

// 1 + 21 + 8 members of 8 bytes: a new member needs an expectation below.
static_assert(sizeof(GroupUpdateStatistics) == 30 * 8);

GroupUpdateStatistics sample() {
  GroupUpdateStatistics group;
  group.element_count = 1;
  group.elements.update_squared_sum = 2;
  group.elements.update_abs_max = 3;
  group.elements.parameter_squared_sum = 4;
  group.elements.parameter_abs_max = 5;
  group.elements.gradient_squared_sum = 6;
  group.elements.momentum_squared_sum = 7;
  group.elements.momentum_sum = 8;
  group.elements.momentum_abs_max = 9;
  group.elements.momentum_gradient_sum = 10;
  group.elements.second_moment_sum = 11;
  group.elements.second_moment_squared_sum = 12;
  group.elements.second_moment_abs_max = 13;
  group.elements.second_moment_before_sum = 14;
  group.elements.staleness_sum = 15;
  group.elements.second_moment_tiny_count = 16;
  group.elements.momentum_code_change_sum = 25;
  group.elements.momentum_code_motion_sum = 26;
  group.elements.second_moment_code_change_sum = 27;
  group.elements.second_moment_code_motion_sum = 28;
  group.elements.withheld_count = 29;
  group.elements.lost_count = 30;
  group.blocks.block_count = 17;
  group.blocks.direction_norm_sum = 18;
  group.blocks.effective_rank_sum = 19;
  group.blocks.effective_rank_min = 20;
  group.blocks.orthogonality_error_sum = 21;
  group.blocks.orthogonality_error_max = 22;
  group.blocks.nonfinite_blocks = 23;
  group.blocks.recomputed_blocks = 24;
  return group;
}

bool same(const GroupUpdateStatistics& a, const GroupUpdateStatistics& b) {
  return std::memcmp(&a, &b, sizeof a) == 0;  // No padding: 8-byte fields only.
}

TEST(GroupUpdateStatistics, AnEmptyPartChangesNothing) {
  GroupUpdateStatistics group = sample();
  group.add({});
  EXPECT_TRUE(same(group, sample()));
}

TEST(GroupUpdateStatistics, EveryMemberOfTheFirstPartIsTaken) {
  GroupUpdateStatistics group;
  group.add(sample());
  EXPECT_TRUE(same(group, sample()));
}

TEST(GroupUpdateStatistics, SumsAddAndExtremesStay) {
  GroupUpdateStatistics group = sample();
  group.add(sample());
  GroupUpdateStatistics expected = sample();
  expected.element_count = 2;
  expected.elements.update_squared_sum = 4;
  expected.elements.parameter_squared_sum = 8;
  expected.elements.gradient_squared_sum = 12;
  expected.elements.momentum_squared_sum = 14;
  expected.elements.momentum_sum = 16;
  expected.elements.momentum_gradient_sum = 20;
  expected.elements.second_moment_sum = 22;
  expected.elements.second_moment_squared_sum = 24;
  expected.elements.second_moment_before_sum = 28;
  expected.elements.staleness_sum = 30;
  expected.elements.second_moment_tiny_count = 32;
  expected.elements.momentum_code_change_sum = 50;
  expected.elements.momentum_code_motion_sum = 52;
  expected.elements.second_moment_code_change_sum = 54;
  expected.elements.second_moment_code_motion_sum = 56;
  expected.elements.withheld_count = 58;
  expected.elements.lost_count = 60;
  expected.blocks.block_count = 34;
  expected.blocks.direction_norm_sum = 36;
  expected.blocks.effective_rank_sum = 38;
  expected.blocks.orthogonality_error_sum = 42;
  expected.blocks.nonfinite_blocks = 46;
  expected.blocks.recomputed_blocks = 48;
  EXPECT_TRUE(same(group, expected));
}

TEST(GroupUpdateStatistics, ExtremesOfEitherPartWin) {
  for (const bool reversed : {false, true}) {
    GroupUpdateStatistics part;
    part.elements.update_abs_max = 103;
    part.elements.parameter_abs_max = 105;
    part.elements.momentum_abs_max = 109;
    part.elements.second_moment_abs_max = 113;
    part.blocks.block_count = 1;
    part.blocks.effective_rank_min = 0.5;
    part.blocks.orthogonality_error_max = 122;
    GroupUpdateStatistics group = reversed ? part : sample();
    group.add(reversed ? sample() : part);
    EXPECT_EQ(group.elements.update_abs_max, 103);
    EXPECT_EQ(group.elements.parameter_abs_max, 105);
    EXPECT_EQ(group.elements.momentum_abs_max, 109);
    EXPECT_EQ(group.elements.second_moment_abs_max, 113);
    EXPECT_EQ(group.blocks.effective_rank_min, 0.5);
    EXPECT_EQ(group.blocks.orthogonality_error_max, 122);
  }
}

// A maximum that is not a number hides the damage if std::max drops it.
TEST(GroupUpdateStatistics, NanInAnyPartSurvives) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  for (const std::size_t bad : {0U, 1U, 2U}) {
    std::vector<GroupUpdateStatistics> parts(3, sample());
    kernels::UpdateStatistics& elements = parts[bad].elements;
    elements.update_abs_max = kNan;
    elements.parameter_abs_max = kNan;
    elements.momentum_abs_max = kNan;
    elements.second_moment_abs_max = kNan;
    parts[bad].blocks.orthogonality_error_max = kNan;
    parts[bad].blocks.effective_rank_min = kNan;
    GroupUpdateStatistics group;
    for (const GroupUpdateStatistics& part : parts) {
      group.add(part);
    }
    EXPECT_TRUE(std::isnan(group.elements.update_abs_max)) << bad;
    EXPECT_TRUE(std::isnan(group.elements.parameter_abs_max)) << bad;
    EXPECT_TRUE(std::isnan(group.elements.momentum_abs_max)) << bad;
    EXPECT_TRUE(std::isnan(group.elements.second_moment_abs_max)) << bad;
    EXPECT_TRUE(std::isnan(group.blocks.orthogonality_error_max)) << bad;
    EXPECT_TRUE(std::isnan(group.blocks.effective_rank_min)) << bad;
  }
}

}  // namespace
}  // namespace muster::optimizer
