// SPDX-License-Identifier: Apache-2.0
// Elementwise operations on rows of experts, computed in fp32 for every storage type.
#pragma once

#include <muster/kernels/low_precision.h>

#include <cstdint>
#include <span>

namespace muster::parallel {

// Rows [0, count) of [rows, ffn] tensors of `type`.
struct ExpertRows {
  DType type{DType::kFloat32};
  std::int64_t count{0};
  std::int64_t ffn{0};
};

// hidden = weight of the row * silu(gate) * up. The weights are [count].
void weighted_swiglu(
    const ExpertRows& rows, const void* gate, const void* up, const float* weights, void* hidden);

// From dhidden, the gradient of the weighted activations: dweights[row] = dhidden . swiglu,
// dgate and dup. dgate may be dhidden.
void weighted_swiglu_backward(
    const ExpertRows& rows,
    const void* gate,
    const void* up,
    const float* weights,
    const void* dhidden,
    void* dgate,
    void* dup,
    float* dweights);

}  // namespace muster::parallel
