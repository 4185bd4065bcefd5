// Full attention with shards of keys that go round the ranks.
#pragma once

#include "context/exchange.h"

namespace muster::kernels {

// Tensors are checked; `counts` null: not asked for.
[[nodiscard]] Status ring_forward(
    const ContextCall& call,
    const ContextTensors& tensors,
    std::span<float> out,
    std::span<float> lse,
    ContextCounts* counts);

[[nodiscard]] Status ring_backward(
    const ContextCall& call,
    const ContextTensors& tensors,
    std::span<const float> out,
    std::span<const float> lse,
    std::span<const float> dout,
    const ContextGradients& gradients);

}  // namespace muster::kernels
