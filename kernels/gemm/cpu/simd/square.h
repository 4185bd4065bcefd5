// SPDX-License-Identifier: Apache-2.0
// Small squares of floats (or of 32 bits each) that are transposed in registers.
#pragma once

#include "kernels/gemm/cpu/simd/helpers.h"

namespace muster::kernels::MUSTER_SIMD_ISA {

#if defined(__AVX512F__)
inline constexpr std::int64_t kSquare = 16;
#else
inline constexpr std::int64_t kSquare = 4;
#endif

typedef float SquareRow __attribute__((vector_size(4 * kSquare)));  // NOLINT: see NativeVector

// The first `count` elements (all where count is larger), 0 in the others.
MUSTER_INLINE SquareRow load_row(const float* p, std::int64_t count) {
#if defined(__AVX512F__)
  return load_some(p, count).v;
#else
  SquareRow row{};
  if (count >= kSquare) {
    __builtin_memcpy(&row, p, sizeof(row));
  } else {
    for (std::int64_t i = 0; i < count; ++i) {
      row[i] = p[i];
    }
  }
  return row;
#endif
}

typedef std::uint16_t SquareHalves __attribute__((vector_size(2 * kSquare)));  // NOLINT
typedef std::uint32_t SquareWords __attribute__((vector_size(4 * kSquare)));   // NOLINT

// The first `count` elements in bf16 (all where count is larger), 0 in the others.
MUSTER_INLINE SquareRow load_row(const std::uint16_t* p, std::int64_t count) {
  SquareHalves halves{};
  if (count >= kSquare) {
    __builtin_memcpy(&halves, p, sizeof(halves));
  } else {
    for (std::int64_t i = 0; i < count; ++i) {
      halves[i] = p[i];
    }
  }
  return SquareRow(__builtin_convertvector(halves, SquareWords) << 16);
}

// Lanes of a pack are as many as a row of a square with AVX-512, and a few of those else.
MUSTER_INLINE Pack<float> load_some(const std::uint16_t* p, std::int64_t count) {
  float lanes[kLanes<float>];
#pragma GCC unroll 4
  for (std::int64_t i = 0; i < kLanes<float>; i += kSquare) {
    const SquareRow row = load_row(p + i, count - i);
    __builtin_memcpy(lanes + i, &row, sizeof(row));
  }
  return load<Pack<float>>(lanes);
}

MUSTER_INLINE void store_row(float* p, SquareRow row, std::int64_t count) {
#if defined(__AVX512F__)
  store_some(p, Pack<float>{row}, count);
#else
  if (count >= kSquare) {
    __builtin_memcpy(p, &row, sizeof(row));
  } else {
    for (std::int64_t i = 0; i < count; ++i) {
      p[i] = row[i];
    }
  }
#endif
}

// Each round rotates the bits of an element's place (row, column) by one: log2(kSquare) rounds
// exchange rows and columns.
MUSTER_INLINE void transpose_square(SquareRow (&rows)[kSquare]) {
  constexpr std::size_t kHalf = kSquare / 2;
#pragma GCC unroll 4
  for (std::int64_t round = 1; round < kSquare; round *= 2) {
    SquareRow next[kSquare];
#pragma GCC unroll 8
    for (std::size_t i = 0; i < kHalf; ++i) {
      const SquareRow a = rows[i];
      const SquareRow b = rows[i + kHalf];
#if defined(__AVX512F__)
      next[2 * i] =
          __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
      next[2 * i + 1] = __builtin_shufflevector(
          a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
#else
      next[2 * i] = __builtin_shufflevector(a, b, 0, 4, 1, 5);
      next[2 * i + 1] = __builtin_shufflevector(a, b, 2, 6, 3, 7);
#endif
    }
#pragma GCC unroll 16
    for (std::size_t i = 0; i < kSquare; ++i) {
      rows[i] = next[i];
    }
  }
}

}  // namespace muster::kernels::MUSTER_SIMD_ISA
