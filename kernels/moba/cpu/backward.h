// SPDX-License-Identifier: Apache-2.0
// Gradients of the sequences that are not dense.
#pragma once

#include "kernels/moba/cpu/call.h"
#include "kernels/moba/cpu/selection.h"

namespace muster::kernels {

struct MobaGradientTensors {
  InputTensors in;
  GradientTensors gradients;
  MobaPart part;
};

// Threads and scale of `call` may differ from those of the forward.
void moba_gradients(
    const MobaCall& call, const MobaGradientTensors& tensors, const MobaSelection::State& state);

}  // namespace muster::kernels
