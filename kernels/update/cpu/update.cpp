// SPDX-License-Identifier: Apache-2.0
#include "kernels/update/cpu/simd/table.h"

#include <muster/common/check.h>
#include <muster/kernels/update_kernels.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

namespace muster::kernels {

namespace {

UpdateScalars common_scalars(const UpdateStep& step) {
  return {
      .gradient_scale = static_cast<float>(step.gradient_scale),
      .learning_rate = static_cast<float>(step.learning_rate),
      .decay_rate = static_cast<float>(step.learning_rate * step.weight_decay),
      .coupled_decay = static_cast<float>(step.weight_decay)};
}

void add_epsilon(UpdateScalars& scalars, double epsilon) {
  scalars.epsilon = static_cast<float>(epsilon);
  scalars.staleness_floor =
      std::max(static_cast<float>(epsilon * epsilon), std::numeric_limits<float>::min());
  scalars.tiny = static_cast<float>(10 * epsilon);
}

void check_state(const UpdateTensors& tensors, const StateView& state, const char* name) {
  const bool is_int8 = state.type == StateType::kInt8Block;
  MUSTER_CHECK(
      tensors.count == 0 || (state.data != nullptr && (!is_int8 || state.absmax != nullptr)),
      std::string("the update rule needs the state ") + name);
  MUSTER_CHECK(
      !is_int8 || tensors.first_index % kQuantBlock == 0,
      std::string("a shard with the 8-bit state ") + name + " begins inside a block");
}

void check_common(const UpdateTensors& tensors, const UpdateStep& step, bool needs_parameter) {
  MUSTER_CHECK(
      tensors.count >= 0 && tensors.first_index >= 0, "a shard has no negative length or index");
  MUSTER_CHECK(
      tensors.count == 0 ||
          (tensors.gradient != nullptr && (!needs_parameter || tensors.parameter != nullptr)),
      "an update rule needs parameter and gradient");
  MUSTER_CHECK(
      tensors.narrow_copy == nullptr || tensors.narrow_type != DType::kFloat32,
      "the copy of a parameter is of 16 bits");
  MUSTER_CHECK(step.step >= 1, "applied updates are counted from 1");
}

// 1 / (1 - beta^t); beta^t underflows to 0 for large t.
double inverse_correction(double beta, std::int64_t step) {
  return 1 / (1 - std::pow(beta, static_cast<double>(step)));
}

UpdateStatistics run_adam(
    const UpdateTensors& tensors,
    const UpdateStep& step,
    const AdamFactors& factors,
    bool coupled) {
  check_common(tensors, step, true);
  check_state(tensors, tensors.first, "m");
  check_state(tensors, tensors.second, "v");
  UpdateScalars scalars = common_scalars(step);
  scalars.momentum_rate = static_cast<float>(1 - factors.beta1);
  scalars.second_rate = static_cast<float>(1 - factors.beta2);
  scalars.learning_rate =
      static_cast<float>(step.learning_rate * inverse_correction(factors.beta1, step.step));
  scalars.inverse_correction2 = static_cast<float>(inverse_correction(factors.beta2, step.step));
  scalars.coupled = coupled;
  add_epsilon(scalars, factors.epsilon);
  UpdateStatistics sums;
  update_table().adam(tensors, step, scalars, sums);
  return sums;
}

}  // namespace

void UpdateStatistics::add(const UpdateStatistics& other) {
  combine(kUpdateStatistics, *this, other);
}

UpdateStatistics sgd_update(const UpdateTensors& tensors, const UpdateStep& step) {
  check_common(tensors, step, true);
  UpdateStatistics sums;
  update_table().sgd(tensors, step, common_scalars(step), sums);
  return sums;
}

UpdateStatistics momentum_update(
    const UpdateTensors& tensors, const UpdateStep& step, const MomentumFactors& factors) {
  check_common(tensors, step, true);
  check_state(tensors, tensors.first, "momentum");
  UpdateScalars scalars = common_scalars(step);
  scalars.momentum = static_cast<float>(factors.momentum);
  scalars.nesterov = factors.nesterov;
  UpdateStatistics sums;
  update_table().momentum(tensors, step, scalars, sums);
  return sums;
}

UpdateStatistics rmsprop_update(
    const UpdateTensors& tensors, const UpdateStep& step, const RmsPropFactors& factors) {
  check_common(tensors, step, true);
  check_state(tensors, tensors.second, "v");
  UpdateScalars scalars = common_scalars(step);
  scalars.second_rate = static_cast<float>(1 - factors.alpha);
  add_epsilon(scalars, factors.epsilon);
  UpdateStatistics sums;
  update_table().rmsprop(tensors, step, scalars, sums);
  return sums;
}

UpdateStatistics adam_update(
    const UpdateTensors& tensors, const UpdateStep& step, const AdamFactors& factors) {
  return run_adam(tensors, step, factors, true);
}

UpdateStatistics adamw_update(
    const UpdateTensors& tensors, const UpdateStep& step, const AdamFactors& factors) {
  return run_adam(tensors, step, factors, false);
}

UpdateStatistics muon_momentum_update(
    const UpdateTensors& tensors,
    const UpdateStep& step,
    const MuonMomentumFactors& factors,
    float* direction) {
  check_common(tensors, step, false);
  check_state(tensors, tensors.first, "momentum");
  MUSTER_CHECK(
      tensors.count == 0 || (direction != nullptr && direction != tensors.first.data),
      "direction must not be the memory of the momentum");
  UpdateScalars scalars = common_scalars(step);
  scalars.momentum = static_cast<float>(factors.momentum);
  scalars.momentum_rate = static_cast<float>(1 - factors.momentum);
  scalars.nesterov = factors.nesterov;
  scalars.ema = factors.ema;
  UpdateStatistics sums;
  update_table().muon_momentum(tensors, step, scalars, direction, sums);
  return sums;
}

UpdateStatistics muon_apply_update(
    const UpdateTensors& tensors, const UpdateStep& step, double scale, const float* orthogonal) {
  UpdateTensors replaced = tensors;
  replaced.gradient = orthogonal;
  check_common(replaced, step, true);
  UpdateScalars scalars = common_scalars(step);
  scalars.learning_rate = static_cast<float>(step.learning_rate * scale);
  UpdateStatistics sums;
  update_table().muon_apply(replaced, step, scalars, sums);
  return sums;
}

}  // namespace muster::kernels
