// SPDX-License-Identifier: Apache-2.0
// Adam with coupled L2 (torch.optim.Adam): g <- g + wd p before the moments; else as AdamW without
// its decay. Another optimizer than AdamW, not a variant: the decay is scaled by 1 / sqrt(v).
// States: m, v.
#pragma once

#include <muster/optimizer/rules/step.h>

namespace muster::optimizer {

struct AdamOptions {
  double beta1{0.9};
  double beta2{0.999};
  double epsilon{1e-8};
};

[[nodiscard]] Status validate(const AdamOptions& options);

[[nodiscard]] kernels::UpdateStatistics update_adam(
    const kernels::UpdateTensors& tensors,
    const kernels::UpdateStep& step,
    const AdamOptions& options);

}  // namespace muster::optimizer
