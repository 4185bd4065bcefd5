// Gradients of the sequences that are not dense.
#pragma once

#include "kernels/moba/cpu/dense.h"
#include "kernels/moba/cpu/selection.h"

namespace muster::kernels {

// `plan` of this call: threads and scale may differ from those of the forward.
void moba_gradients(
    const MobaPlan& plan, const MobaGradientTensors& tensors, const MobaSelection::State& state);

}  // namespace muster::kernels
