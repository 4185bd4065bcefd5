// SPDX-License-Identifier: Apache-2.0
// Vectors of random numbers. The same seed gives the same numbers on every machine.
#pragma once

#include <muster/common/random.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace muster::test {

// Standard normal values times `scale`, computed in double.
template <typename T = double>
[[nodiscard]] std::vector<T> normal_values(Random& random, std::size_t count, double scale = 1) {
  std::vector<T> values(count);
  std::generate(
      values.begin(), values.end(), [&] { return static_cast<T>(scale * random.normal()); });
  return values;
}

template <typename T = double>
[[nodiscard]] std::vector<T> normal_values(
    std::uint64_t seed, std::int64_t count, double scale = 1) {
  Random random{seed};
  return normal_values<T>(random, static_cast<std::size_t>(count), scale);
}

// The same, rounded to fp32, so that a computation in fp32 and its reference in double start from
// equal numbers.
[[nodiscard]] inline std::vector<double> fp32_normal_values(
    Random& random, std::size_t count, double scale = 1) {
  const std::vector<float> rounded = normal_values<float>(random, count, scale);
  return {rounded.begin(), rounded.end()};
}

// Uniform in [-1, 1).
[[nodiscard]] inline std::vector<double> uniform_values(std::uint64_t seed, std::int64_t count) {
  Random random{seed};
  std::vector<double> values(static_cast<std::size_t>(count));
  std::generate(values.begin(), values.end(), [&] { return 2 * random.uniform() - 1; });
  return values;
}

}  // namespace muster::test
