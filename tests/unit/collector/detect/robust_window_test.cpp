// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/collector/detect/observations.h"

#include <muster/detect/robust_window.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>

namespace muster::detect {

namespace {

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : 0.5 * (values[middle - 1] + values[middle]);
}

double mad_of(const std::deque<double>& values) {
  const double center = median_of({values.begin(), values.end()});
  std::vector<double> deviations;
  for (const double value : values) {
    deviations.push_back(std::abs(value - center));
  }
  return median_of(deviations);
}

}  // namespace

TEST(RobustWindow, EqualsBruteForceOverRandomStreams) {
  constexpr std::uint64_t kSeed = 11;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  Random random{kSeed};
  for (const std::size_t capacity : {1U, 2U, 3U, 7U, 64U}) {
    RobustWindow window{capacity, {}};
    std::deque<double> values;
    for (int i = 0; i < 300; ++i) {
      // Few distinct values, so that ties are common.
      const double value = i % 3 == 0 ? static_cast<double>(random.below(4)) : random.normal();
      window.push(value);
      values.push_back(value);
      if (values.size() > capacity) {
        values.pop_front();
      }
      ASSERT_EQ(window.size(), values.size());
      ASSERT_DOUBLE_EQ(window.median(), median_of({values.begin(), values.end()}));
      ASSERT_NEAR(window.scale(), 1.4826 * mad_of(values), 1e-12);
    }
  }
}

TEST(RobustWindow, ConstantStreamHasTheFloorAsItsScale) {
  RobustWindow window{8, {.absolute = 0.001, .relative = 0.125}};
  for (int i = 0; i < 8; ++i) {
    window.push(2.0);
  }
  EXPECT_EQ(window.scale(), 0.25);
  EXPECT_EQ(window.z(3.25), 5.0);
}

TEST(RobustWindow, EmptyWindowJudgesNothing) {
  RobustWindow window{8, {}};
  EXPECT_EQ(window.z(5.0), 0.0);
  window.push(1.0);
  window.clear();
  EXPECT_EQ(window.size(), 0U);
  EXPECT_EQ(window.z(5.0), 0.0);
}

}  // namespace muster::detect
