// SPDX-License-Identifier: Apache-2.0
#include "trainer/moe_lm/src/weights.h"

#include <muster/kernels/low_precision.h>

#include <algorithm>

namespace muster::moe_lm {

Weights::Weights(optimizer::Optimizer& optimizer, std::chrono::nanoseconds timeout)
    : optimizer_(optimizer), timeout_(timeout) {
  const auto parameters = optimizer_.parameters();
  copies_.resize(parameters.size());
  fresh_.resize(parameters.size(), false);
  for (std::size_t index = 0; index < parameters.size(); ++index) {
    copies_[index].resize(parameters[index].value16.size());
    const bool narrow = !copies_[index].empty();
    weights_.push_back(
        {index,
         narrow ? std::span{copies_[index]} : parameters[index].value,
         parameters[index].gradient});
  }
}

Weight* Weights::find(const std::string& name) {
  const auto parameters = optimizer_.parameters();
  const auto found =
      std::find_if(parameters.begin(), parameters.end(), [&](const optimizer::Parameter& one) {
        return one.spec.name == name;
      });
  return found == parameters.end()
             ? nullptr
             : &weights_[static_cast<std::size_t>(found - parameters.begin())];
}

Status Weights::await_one(std::size_t index) {
  if (fresh_[index]) {
    return {};
  }
  MUSTER_RETURN_IF_ERROR(optimizer_.wait_gathered(index, Deadline::after(timeout_)));
  if (!copies_[index].empty()) {
    const optimizer::Parameter& parameter = optimizer_.parameters()[index];
    kernels::widen(parameter.spec.dtype, parameter.value16, copies_[index]);
  }
  fresh_[index] = true;
  return {};
}

Status Weights::await(std::initializer_list<const Weight*> weights) {
  for (const Weight* weight : weights) {
    MUSTER_RETURN_IF_ERROR(await_one(weight->index));
  }
  return {};
}

Status Weights::await_all() {
  for (const Weight& weight : weights_) {
    MUSTER_RETURN_IF_ERROR(await_one(weight.index));
  }
  return {};
}

void Weights::parameters_changed() {
  std::fill(fresh_.begin(), fresh_.end(), false);
}

void Weights::gradients_done(std::initializer_list<const Weight*> weights) {
  if (last_pass_) {
    for (const Weight* weight : weights) {
      optimizer_.gradient_ready(weight->index);
    }
  }
}

}  // namespace muster::moe_lm
