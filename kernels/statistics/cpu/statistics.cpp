// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/simd/table.h"

#include <muster/kernels/statistics.h>

#include <algorithm>
#include <cmath>

namespace muster::kernels {

double TensorStatistics::l2() const {
  return std::sqrt(squared_sum);
}

double TensorStatistics::mean() const {
  const std::int64_t finite = count - nonfinite_count;
  return finite == 0 ? 0 : sum / static_cast<double>(finite);
}

double TensorStatistics::variance() const {
  const std::int64_t finite = count - nonfinite_count;
  if (finite == 0) {
    return 0;
  }
  // Rounding can make the difference of two equal numbers negative; a variance is not.
  return std::max(0.0, squared_sum / static_cast<double>(finite) - mean() * mean());
}

TensorStatistics statistics(std::span<const float> values) {
  TensorStatistics result;
  optimizer_table().statistics(values.data(), std::ssize(values), result);
  return result;
}

NormAndNonfinite norm_and_nonfinite(std::span<const float> values) {
  NormAndNonfinite result;
  optimizer_table().norm_and_nonfinite(values.data(), std::ssize(values), result);
  return result;
}

}  // namespace muster::kernels
