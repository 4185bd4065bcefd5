// SPDX-License-Identifier: Apache-2.0
// Random inputs and the comparison of gradients with central differences.
#pragma once

#include "tests/support/random_values.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

namespace muster::kernels::test {

using Values = std::vector<double>;

using muster::test::normal_values;

template <typename To, typename From>
std::vector<To> cast(const std::vector<From>& values) {
  std::vector<To> result(values.size());
  std::transform(values.begin(), values.end(), result.begin(), [](From value) {
    return static_cast<To>(value);
  });
  return result;
}

inline double dot(const Values& a, const Values& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    sum += a[i] * b[i];
  }
  return sum;
}

// Every element of `gradient` against (loss(x + h) - loss(x - h)) / 2h. With h = 1e-5 the
// truncation error is about h^2 and the rounding error about 1e-16 / h: both are below 1e-9 of
// values near 1.
inline void expect_gradient(
    Values& at,
    const Values& gradient,
    const std::function<double()>& loss,
    double tolerance = 1e-7) {
  constexpr double kStep = 1e-5;
  ASSERT_EQ(at.size(), gradient.size());
  for (std::size_t i = 0; i < at.size(); ++i) {
    const double kept = at[i];
    at[i] = kept + kStep;
    const double above = loss();
    at[i] = kept - kStep;
    const double below = loss();
    at[i] = kept;
    const double expected = (above - below) / (2 * kStep);
    ASSERT_NEAR(gradient[i], expected, tolerance * (1 + std::abs(expected))) << "element " << i;
  }
}

// max |a - b| over (1 + max |b|).
template <typename A, typename B>
double distance(const std::vector<A>& a, const std::vector<B>& b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0;
  double scale = 1;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    largest = std::isnan(difference) ? difference : std::max(largest, difference);
    scale = std::max(scale, std::abs(static_cast<double>(b[i])));
  }
  return largest / scale;
}

}  // namespace muster::kernels::test
