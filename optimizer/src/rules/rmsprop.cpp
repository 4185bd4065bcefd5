// SPDX-License-Identifier: Apache-2.0
#include "optimizer/src/rules/checks.h"

#include <muster/optimizer/rules/rmsprop.h>

namespace muster::optimizer {

Status validate(const RmsPropOptions& options) {
  MUSTER_RETURN_IF_ERROR(require_fraction(options.alpha, "rmsprop.alpha"));
  return require_not_negative(options.epsilon, "rmsprop.epsilon");
}

kernels::UpdateStatistics update_rmsprop(
    const kernels::UpdateTensors& tensors,
    const kernels::UpdateStep& step,
    const RmsPropOptions& options) {
  return kernels::rmsprop_update(tensors, step, {options.alpha, options.epsilon});
}

}  // namespace muster::optimizer
