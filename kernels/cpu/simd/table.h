// SPDX-License-Identifier: Apache-2.0
// The hot loops, compiled once per instruction set and picked on first use.
//
// Signatures as in the public headers; pointers instead of containers, see pack.h.
#pragma once

#include <muster/kernels/layers.h>
#include <muster/kernels/statistics.h>

#include <cstdint>

namespace muster::kernels {

template <typename T>
struct KernelTable {
  decltype(&rms_norm_forward<T>) rms_norm_forward;
  decltype(&rms_norm_backward<T>) rms_norm_backward;
  decltype(&swiglu_forward<T>) swiglu_forward;
  decltype(&swiglu_backward<T>) swiglu_backward;
  decltype(&cross_entropy<T>) cross_entropy;

  // angles[sequence, 2, head_dim / 2]: cosines, then sines, of a position. `sign` -1 rotates back.
  void (*rope)(
      T* x,
      std::int64_t tokens,
      std::int64_t heads,
      std::int64_t head_dim,
      std::int64_t sequence,
      const T* angles,
      T sign);

  // scores[rows, columns] = softmax of each row.
  void (*softmax)(const T* logits, T* scores, std::int64_t rows, std::int64_t columns);
  T (*dot)(const T* a, const T* b, std::int64_t count);
  // y = beta * y + alpha * x; beta 0 overwrites.
  void (*scale_add)(T alpha, const T* x, T beta, T* y, std::int64_t count);
};

struct OptimizerTable {
  void (*statistics)(const float* values, std::int64_t count, TensorStatistics& result);
  void (*norm_and_nonfinite)(const float* values, std::int64_t count, NormAndNonfinite& result);
};

// The table for this machine; MUSTER_KERNELS_ISA=baseline|avx2|avx512 asks for a lesser one.
template <typename T>
[[nodiscard]] const KernelTable<T>& kernel_table();

[[nodiscard]] const OptimizerTable& optimizer_table();

}  // namespace muster::kernels
