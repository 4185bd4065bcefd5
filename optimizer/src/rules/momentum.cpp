// SPDX-License-Identifier: Apache-2.0
#include "optimizer/src/rules/checks.h"

#include <muster/optimizer/rules/momentum.h>

namespace muster::optimizer {

Status validate(const MomentumOptions& options) {
  return require_fraction(options.momentum, "momentum.momentum");
}

kernels::UpdateStatistics update_momentum(
    const kernels::UpdateTensors& tensors,
    const kernels::UpdateStep& step,
    const MomentumOptions& options) {
  return kernels::momentum_update(tensors, step, {options.momentum, options.nesterov});
}

}  // namespace muster::optimizer
