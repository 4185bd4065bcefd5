// SPDX-License-Identifier: Apache-2.0
// Blocks of scaled logits, bias and softcap: what forward and backward tiles share.
#pragma once

#include "kernels/attention/cpu/simd/micro.h"

namespace muster::kernels::MUSTER_SIMD_ISA {

// Lines of a left operand packed by pack_keys that begin at `key`.
template <typename T>
MUSTER_INLINE Left<T> key_lines(const T* keys, std::int64_t key, std::int64_t units) {
  return packed_left(keys + key / kFlashRows * units * kFlashRows + key % kFlashRows);
}

// to[key lines][columns] = scale * keys . queries, `columns` registers from `native` on.
template <typename Math, std::size_t Columns>
MUSTER_INLINE void product_block(
    typename Math::Vector (&sums)[kLines][Columns],
    Left<typename Math::Scalar> keys,
    const typename Math::Scalar* queries,
    std::int64_t units,
    std::int64_t native,
    typename Math::Scalar scale) {
  using T = typename Math::Scalar;
  accumulate<Math, 0>(sums, keys, queries + native * kNativeLanes<T>, kFlashLanes<T>, units);
#pragma GCC unroll 8
  for (std::size_t r = 0; r < kLines; ++r) {
#pragma GCC unroll 3
    for (std::size_t c = 0; c < Columns; ++c) {
      sums[r][c] *= scale;
    }
  }
}

// Bias of key `key` of the tile for the lanes of a register, 0 in those that do not exist.
template <typename T>
MUSTER_INLINE Native<T> bias_of(
    const FlashLogits<T>& logits,
    std::int64_t key,
    std::int64_t native,
    std::int64_t lanes,
    std::int64_t panel) {
  T values[kNativeLanes<T>];
  for (std::int64_t i = 0; i < kNativeLanes<T>; ++i) {
    const std::int64_t lane = native * kNativeLanes<T> + i;
    const bool exists = lane < lanes;
    values[i] =
        exists ? static_cast<T>(logits.bias[panel * kFlashLanes<T> + lane][logits.first_key + key])
               : T{0};
  }
  return load_native<Native<T>>(values);
}

}  // namespace muster::kernels::MUSTER_SIMD_ISA
