// SPDX-License-Identifier: Apache-2.0
// RMSProp (torch.optim.RMSprop, not centred, no momentum): g <- g + wd p;
// v <- a v + (1 - a) g^2; p <- p - lr g / (sqrt(v) + eps). State: v.
#pragma once

#include <muster/optimizer/rules/step.h>

namespace muster::optimizer {

struct RmsPropOptions {
  double alpha{0.99};
  double epsilon{1e-8};
};

[[nodiscard]] Status validate(const RmsPropOptions& options);

[[nodiscard]] kernels::UpdateStatistics update_rmsprop(
    const kernels::UpdateTensors& tensors,
    const kernels::UpdateStep& step,
    const RmsPropOptions& options);

}  // namespace muster::optimizer
