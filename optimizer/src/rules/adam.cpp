// SPDX-License-Identifier: Apache-2.0
#include "optimizer/src/rules/checks.h"

#include <muster/optimizer/rules/adam.h>

namespace muster::optimizer {

Status validate(const AdamOptions& options) {
  MUSTER_RETURN_IF_ERROR(require_fraction(options.beta1, "adam.beta1"));
  MUSTER_RETURN_IF_ERROR(require_fraction(options.beta2, "adam.beta2"));
  return require_not_negative(options.epsilon, "adam.epsilon");
}

kernels::UpdateStatistics update_adam(
    const kernels::UpdateTensors& tensors,
    const kernels::UpdateStep& step,
    const AdamOptions& options) {
  return kernels::adam_update(tensors, step, {options.beta1, options.beta2, options.epsilon});
}

}  // namespace muster::optimizer
