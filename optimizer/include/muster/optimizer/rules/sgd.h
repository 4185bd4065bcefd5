// SPDX-License-Identifier: Apache-2.0
// SGD: p <- p (1 - lr wd) - lr g. No state.
#pragma once

#include <muster/optimizer/rules/step.h>

namespace muster::optimizer {

[[nodiscard]] kernels::UpdateStatistics update_sgd(
    const kernels::UpdateTensors& tensors, const kernels::UpdateStep& step);

}  // namespace muster::optimizer
