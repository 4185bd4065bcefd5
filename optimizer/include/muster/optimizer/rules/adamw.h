// SPDX-License-Identifier: Apache-2.0
// AdamW (Loshchilov and Hutter, arXiv 1711.05101) in torch.optim.AdamW's order: decay, moments,
// bias-corrected step. States: m, v.
#pragma once

#include <muster/optimizer/rules/step.h>

namespace muster::optimizer {

struct AdamWOptions {
  double beta1{0.9};
  double beta2{0.95};
  double epsilon{1e-8};
};

[[nodiscard]] Status validate(const AdamWOptions& options);

[[nodiscard]] kernels::UpdateStatistics update_adamw(
    const kernels::UpdateTensors& tensors,
    const kernels::UpdateStep& step,
    const AdamWOptions& options);

}  // namespace muster::optimizer
