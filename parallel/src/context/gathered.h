// SPDX-License-Identifier: Apache-2.0
// The set-up that forms with gathered keys share: keys of all ranks, and per segment of queries the
// call of an operator on the keys that the segment may see. lse is [heads, queries of the piece].
#pragma once

#include "parallel/src/context/exchange.h"
#include "parallel/src/context/pair.h"

#include <cstddef>
#include <functional>

namespace muster::parallel {

// `segment` counts the segments of this rank; the problem is of one sequence, bottom-right aligned.
using SegmentForward = std::function<Status(
    std::size_t segment,
    const kernels::AttentionProblem& problem,
    const kernels::AttentionInputs& inputs,
    const kernels::AttentionOutputs& outputs)>;

using SegmentBackward = std::function<Status(
    std::size_t segment,
    const kernels::AttentionProblem& problem,
    const kernels::AttentionInputs& inputs,
    const kernels::AttentionGradients& gradients)>;

// Tensors must have been checked.
[[nodiscard]] Status gathered_forward(
    const ContextCall& call,
    const ContextTensors& tensors,
    std::span<float> out,
    std::span<float> lse,
    const SegmentForward& attend);

// A reduce-scatter returns the gradients of keys to their ranks.
[[nodiscard]] Status gathered_backward(
    const ContextCall& call,
    const ContextTensors& tensors,
    std::span<const float> out,
    std::span<const float> lse,
    std::span<const float> dout,
    const ContextGradients& gradients,
    const SegmentBackward& attend);

}  // namespace muster::parallel
