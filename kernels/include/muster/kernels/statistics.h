// SPDX-License-Identifier: Apache-2.0
// Statistics of one tensor, in one pass, summed in double.
#pragma once

#include <cstdint>
#include <span>

namespace muster::kernels {

// One pass over a tensor.
struct TensorStatistics {
  std::int64_t count{0};
  double sum{0};          // of finite values
  double squared_sum{0};  // of finite values
  double abs_max{0};      // of finite values
  std::int64_t zero_count{0};
  std::int64_t nonfinite_count{0};

  [[nodiscard]] double l2() const;
  [[nodiscard]] double mean() const;
  [[nodiscard]] double variance() const;  // population, finite values
};

[[nodiscard]] TensorStatistics statistics(std::span<const float> values);

// Only the two numbers that every step needs; memory-bound.
struct NormAndNonfinite {
  double squared_sum{0};  // of finite values
  std::int64_t nonfinite_count{0};
};

[[nodiscard]] NormAndNonfinite norm_and_nonfinite(std::span<const float> values);

}  // namespace muster::kernels
