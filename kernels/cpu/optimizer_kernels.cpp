#include "cpu/simd/table.h"

#include <muster/common/check.h>
#include <muster/kernels/optimizer_kernels.h>

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

UpdateStatistics adamw_update(
    std::span<float> parameter,
    std::span<const float> gradient,
    std::span<float> m,
    std::span<float> v,
    const AdamWStep& step) {
  MUSTER_CHECK(
      gradient.size() == parameter.size() && m.size() == parameter.size() &&
          v.size() == parameter.size(),
      "parameter, gradient, m and v of AdamW differ in length");
  const auto t = static_cast<double>(step.step);
  const AdamWFactors factors{
      .gradient_scale = static_cast<float>(step.gradient_scale),
      .decay_rate = static_cast<float>(step.learning_rate * step.weight_decay),
      .momentum_rate = static_cast<float>(1 - step.beta1),
      .second_rate = static_cast<float>(1 - step.beta2),
      .inverse_correction1 = static_cast<float>(1 / (1 - std::pow(step.beta1, t))),
      .inverse_correction2 = static_cast<float>(1 / (1 - std::pow(step.beta2, t))),
      .learning_rate = static_cast<float>(step.learning_rate),
      .epsilon = static_cast<float>(step.epsilon)};
  UpdateStatistics sums;
  optimizer_table().adamw(
      {parameter.data(), gradient.data(), m.data(), v.data(), std::ssize(parameter)},
      factors,
      sums);
  return sums;
}

}  // namespace muster::kernels
