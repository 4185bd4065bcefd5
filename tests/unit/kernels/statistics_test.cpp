// SPDX-License-Identifier: Apache-2.0
#include "tests/support/floats.h"
#include "tests/unit/kernels/numbers.h"

#include <muster/kernels/statistics.h>

#include <limits>

namespace muster::kernels {
namespace {

using muster::test::kInfinityF;
using muster::test::kNanF;

using test::cast;
using test::normal_values;

TEST(Statistics, AgreeWithTwoPasses) {
  for (const std::int64_t count : {0, 1, 15, 16, 17, 1000, 70000}) {
    const auto values = cast<float>(normal_values(1, count));
    const TensorStatistics s = statistics(values);
    double sum = 0;
    double squared = 0;
    double largest = 0;
    for (const float x : values) {
      const auto wide = static_cast<double>(x);
      sum += wide;
      squared += wide * wide;
      largest = std::max(largest, std::abs(wide));
    }
    EXPECT_EQ(s.count, count);
    EXPECT_NEAR(s.sum, sum, 1e-9);
    EXPECT_NEAR(s.squared_sum, squared, 1e-9 * (1 + squared));
    EXPECT_EQ(s.abs_max, largest);
    EXPECT_EQ(s.zero_count, 0);
    EXPECT_EQ(s.nonfinite_count, 0);
    EXPECT_NEAR(s.l2(), std::sqrt(squared), 1e-9 * (1 + squared));
  }
}

TEST(Statistics, VarianceIsOfThePopulation) {
  const std::vector<float> values{1, 2, 3, 4};
  EXPECT_DOUBLE_EQ(statistics(values).mean(), 2.5);
  EXPECT_DOUBLE_EQ(statistics(values).variance(), 1.25);
}

TEST(Statistics, VarianceOfAConstantIsNotNegative) {
  EXPECT_GE(statistics(std::vector<float>(1001, 0.1F)).variance(), 0);
  EXPECT_EQ(statistics({}).variance(), 0);
}

TEST(Statistics, NonfiniteValuesAreCountedAndLeftOut) {
  for (const std::size_t count : {5U, 16U, 37U}) {
    std::vector<float> values(count, 2);
    values[0] = kNanF;
    values[2] = -kInfinityF;
    values[count - 1] = kInfinityF;
    values[3] = 0;
    const TensorStatistics s = statistics(values);
    const auto twos = static_cast<double>(count - 4);
    EXPECT_EQ(s.nonfinite_count, 3);
    EXPECT_EQ(s.zero_count, 1);
    EXPECT_EQ(s.sum, 2 * twos);
    EXPECT_EQ(s.squared_sum, 4 * twos);
    EXPECT_EQ(s.abs_max, twos > 0 ? 2 : 0);
    const NormAndNonfinite norm = norm_and_nonfinite(values);
    EXPECT_EQ(norm.nonfinite_count, 3);
    EXPECT_EQ(norm.squared_sum, 4 * twos);
  }
}

TEST(Statistics, SquaresOfHugeAndTinyValuesAreExact) {
  const std::vector<float> values{1e38F, 1e-38F, -1e38F};
  const auto huge = static_cast<double>(1e38F);
  EXPECT_DOUBLE_EQ(norm_and_nonfinite(values).squared_sum, 2 * huge * huge);
  const auto tiny = static_cast<double>(1e-30F);
  EXPECT_DOUBLE_EQ(norm_and_nonfinite(std::vector<float>(3, 1e-30F)).squared_sum, 3 * tiny * tiny);
}

TEST(Statistics, CountsBeyondTheBlockOfACounter) {
  EXPECT_EQ(norm_and_nonfinite(std::vector<float>(200001, kNanF)).nonfinite_count, 200001);
  EXPECT_EQ(statistics(std::vector<float>(200001, -0.0F)).zero_count, 200001);
}

TEST(Statistics, BlockSumsLoseNothingOnLongTensors) {
  const std::vector<float> values(1 << 20, 1.0F);
  EXPECT_EQ(norm_and_nonfinite(values).squared_sum, 1 << 20);
  EXPECT_EQ(statistics(values).sum, 1 << 20);
}

}  // namespace
}  // namespace muster::kernels
