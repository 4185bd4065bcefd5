// SPDX-License-Identifier: Apache-2.0
// Momentum SGD (torch.optim.SGD, dampening 0): g <- g + wd p; buf <- mu buf + g;
// p <- p - lr buf, or p - lr (g + mu buf) with Nesterov. State: momentum.
#pragma once

#include <muster/optimizer/rules/step.h>

namespace muster::optimizer {

struct MomentumOptions {
  double momentum{0.9};
  bool nesterov{false};
};

[[nodiscard]] Status validate(const MomentumOptions& options);

[[nodiscard]] kernels::UpdateStatistics update_momentum(
    const kernels::UpdateTensors& tensors,
    const kernels::UpdateStep& step,
    const MomentumOptions& options);

}  // namespace muster::optimizer
