// SPDX-License-Identifier: Apache-2.0
// Intervals of pieces in a flattened tensor, and the check that they tile it.
#include "checkpoint/src/intervals.h"

#include <gtest/gtest.h>

#include <limits>

namespace muster::checkpoint::testing {

using Shape = std::vector<std::int64_t>;

std::optional<Interval> run(const Shape& shape, const Shape& global_shape, const Shape& offset) {
  return flattened(shape, global_shape, offset);
}

TEST(Intervals, RowsOfAMatrixAreOneRun) {
  EXPECT_EQ(run({2, 3}, {8, 3}, {5, 0}), (Interval{15, 21}));
  EXPECT_EQ(run({8, 3}, {8, 3}, {0, 0}), (Interval{0, 24}));
}

TEST(Intervals, APartOfOneRowIsOneRun) {
  EXPECT_EQ(run({1, 2}, {8, 3}, {5, 1}), (Interval{16, 18}));
}

TEST(Intervals, MatricesOfAStackAndRowsOfOneOfThemAreOneRun) {
  EXPECT_EQ(run({2, 4, 3}, {6, 4, 3}, {3, 0, 0}), (Interval{36, 60}));
  EXPECT_EQ(run({1, 2, 3}, {6, 4, 3}, {3, 1, 0}), (Interval{39, 45}));
}

TEST(Intervals, AFlatPieceIsItsOwnRun) {
  EXPECT_EQ(run({5}, {24}, {7}), (Interval{7, 12}));
}

TEST(Intervals, AScalarIsOneElement) {
  EXPECT_EQ(run({}, {}, {}), (Interval{0, 1}));
}

TEST(Intervals, ColumnsOfSeveralRowsAreNotOneRun) {
  EXPECT_FALSE(run({8, 1}, {8, 3}, {0, 1}));
  EXPECT_FALSE(run({2, 2, 3}, {6, 4, 3}, {0, 0, 0}));
}

TEST(Intervals, AnEmptyPieceIsAnEmptyRunWhateverItsShape) {
  EXPECT_EQ(run({8, 0}, {8, 3}, {0, 3}), (Interval{0, 0}));
  EXPECT_EQ(run({0, 3}, {0, 3}, {0, 0}), (Interval{0, 0}));
}

TEST(Intervals, APieceThatLeavesItsTensorHasNoRun) {
  EXPECT_FALSE(run({2, 3}, {8, 3}, {7, 0}));
  EXPECT_FALSE(run({2, 3}, {8, 3}, {-1, 0}));
  EXPECT_FALSE(run({2}, {8, 3}, {0, 0}));
}

TEST(Intervals, ElementCountsThatOverflowAreNone) {
  const std::int64_t large = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(element_count(Shape{3, 5}), 15);
  EXPECT_FALSE(element_count(Shape{large, 2}));
  EXPECT_FALSE(element_count(Shape{-1}));
}

TEST(Intervals, NeighboursTileATensor) {
  EXPECT_FALSE(find_coverage_fault(std::vector<Interval>{{0, 4}, {4, 5}, {5, 9}}, 9));
  EXPECT_FALSE(find_coverage_fault(std::vector<Interval>{}, 0));
}

TEST(Intervals, AHoleIsFoundAtTheFrontInTheMiddleAndAtTheEnd) {
  const auto front = find_coverage_fault(std::vector<Interval>{{1, 9}}, 9);
  ASSERT_TRUE(front);
  EXPECT_EQ(front->elements, (Interval{0, 1}));
  EXPECT_EQ(front->next, 0U);
  const auto middle = find_coverage_fault(std::vector<Interval>{{0, 4}, {6, 9}}, 9);
  ASSERT_TRUE(middle);
  EXPECT_EQ(middle->elements, (Interval{4, 6}));
  EXPECT_FALSE(middle->twice);
  const auto end = find_coverage_fault(std::vector<Interval>{{0, 4}}, 9);
  ASSERT_TRUE(end);
  EXPECT_EQ(end->elements, (Interval{4, 9}));
  EXPECT_EQ(end->next, 1U);
}

TEST(Intervals, AnOverlapIsFoundAlsoInsideALongerOne) {
  const auto partly = find_coverage_fault(std::vector<Interval>{{0, 4}, {3, 9}}, 9);
  ASSERT_TRUE(partly);
  EXPECT_TRUE(partly->twice);
  EXPECT_EQ(partly->elements, (Interval{3, 4}));
  const auto inside = find_coverage_fault(std::vector<Interval>{{0, 9}, {3, 5}}, 9);
  ASSERT_TRUE(inside);
  EXPECT_TRUE(inside->twice);
  EXPECT_EQ(inside->elements, (Interval{3, 5}));
}

}  // namespace muster::checkpoint::testing
