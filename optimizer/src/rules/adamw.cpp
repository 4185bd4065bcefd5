// SPDX-License-Identifier: Apache-2.0
#include "optimizer/src/rules/checks.h"

#include <muster/optimizer/rules/adamw.h>

namespace muster::optimizer {

Status validate(const AdamWOptions& options) {
  MUSTER_RETURN_IF_ERROR(require_fraction(options.beta1, "adamw.beta1"));
  MUSTER_RETURN_IF_ERROR(require_fraction(options.beta2, "adamw.beta2"));
  return require_not_negative(options.epsilon, "adamw.epsilon");
}

kernels::UpdateStatistics update_adamw(
    const kernels::UpdateTensors& tensors,
    const kernels::UpdateStep& step,
    const AdamWOptions& options) {
  return kernels::adamw_update(tensors, step, {options.beta1, options.beta2, options.epsilon});
}

}  // namespace muster::optimizer
