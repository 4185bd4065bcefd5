// SPDX-License-Identifier: Apache-2.0
// Rotation of key shards over the ranks, shared by full and block attention.
#pragma once

#include "parallel/src/context/gathered.h"

#include <cstddef>
#include <functional>

namespace muster::parallel {

// Queries of this rank against keys of the shard that it holds, of the same sequence.
struct RingPair {
  std::size_t segment;  // segment of the queries among those of this rank
  const ContextSegment& queries;
  const ContextSegment& keys;
  bool diagonal;  // the same rows under a causal mask; otherwise all keys are visible
  kernels::AttentionInputs inputs;
};

// Tensors must have been checked. `attend` computes a partial result over the keys of a pair; rows
// that see none of them have an lse of -inf. Partial results are merged.
[[nodiscard]] Status ring_forward(
    const ContextCall& call,
    const ContextTensors& tensors,
    std::span<float> out,
    std::span<float> lse,
    const std::function<Status(const RingPair& pair, const kernels::AttentionOutputs& part)>&
        attend);

// `attend` overwrites dq, dk and dv of a pair, from the global out and lse; they are added up.
[[nodiscard]] Status ring_backward(
    const ContextCall& call,
    const ContextTensors& tensors,
    std::span<const float> out,
    std::span<const float> lse,
    std::span<const float> dout,
    const ContextGradients& gradients,
    const std::function<Status(const RingPair& pair, const kernels::AttentionGradients& part)>&
        attend);

}  // namespace muster::parallel
