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
  UpdateTensors tensors;
  tensors.parameter = parameter.data();
  tensors.gradient = gradient.data();
  tensors.first.data = m.data();
  tensors.second.data = v.data();
  tensors.count = std::ssize(parameter);
  const UpdateStep common{
      .learning_rate = step.learning_rate,
      .weight_decay = step.weight_decay,
      .gradient_scale = step.gradient_scale,
      .step = step.step};
  return adamw_update(tensors, common, {step.beta1, step.beta2, step.epsilon});
}

}  // namespace muster::kernels
