// Products of small matrices that lie in the first-level cache: the inner loops of attention.
#pragma once

#include "cpu/simd/pack.h"

#include <cstddef>

namespace muster::kernels::MUSTER_SIMD_ISA {

// Rows and packs of the result that stay in registers: 16 of 32 registers with AVX-512, 8 of 16
// else.
inline constexpr std::size_t kBlockRows = kNativeBytes == 64 ? 8 : kNativeBytes == 32 ? 4 : 2;
inline constexpr std::size_t kBlockPacks = kNativeBytes == 64 ? 2 : 1;

// Element (row, k) lies at data[row * row_stride + k * depth_stride].
template <typename T>
struct Strided {
  const T* data;
  std::int64_t row_stride;
  std::int64_t depth_stride;
};

constexpr std::int64_t offset(std::size_t index, std::int64_t stride) {
  return static_cast<std::int64_t>(index) * stride;
}

template <typename T, std::size_t Rows, std::size_t Packs>
MUSTER_INLINE void multiply_block(
    Strided<T> a,
    const T* b,
    std::int64_t b_stride,
    T* c,
    std::int64_t c_stride,
    std::int64_t depth,
    bool accumulate) {
  Pack<T> sums[Rows][Packs];
#pragma GCC unroll 8
  for (std::size_t r = 0; r < Rows; ++r) {
#pragma GCC unroll 2
    for (std::size_t p = 0; p < Packs; ++p) {
      sums[r][p] =
          accumulate ? load<Pack<T>>(c + offset(r, c_stride) + offset(p, kLanes<T>)) : Pack<T>{};
    }
  }
  for (std::int64_t k = 0; k < depth; ++k) {
    Pack<T> row[Packs];
#pragma GCC unroll 2
    for (std::size_t p = 0; p < Packs; ++p) {
      row[p] = load<Pack<T>>(b + k * b_stride + offset(p, kLanes<T>));
    }
#pragma GCC unroll 8
    for (std::size_t r = 0; r < Rows; ++r) {
      const auto x = broadcast<Pack<T>>(a.data[offset(r, a.row_stride) + k * a.depth_stride]);
#pragma GCC unroll 2
      for (std::size_t p = 0; p < Packs; ++p) {
        sums[r][p] = sums[r][p] + x * row[p];
      }
    }
  }
#pragma GCC unroll 8
  for (std::size_t r = 0; r < Rows; ++r) {
#pragma GCC unroll 2
    for (std::size_t p = 0; p < Packs; ++p) {
      store(c + offset(r, c_stride) + offset(p, kLanes<T>), sums[r][p]);
    }
  }
}

template <typename T, std::size_t Packs>
MUSTER_INLINE void multiply_columns(
    Strided<T> a,
    const T* b,
    std::int64_t b_stride,
    T* c,
    std::int64_t c_stride,
    std::int64_t rows,
    std::int64_t depth,
    bool accumulate) {
  constexpr auto kStep = static_cast<std::int64_t>(kBlockRows);
  std::int64_t r = 0;
  for (; r + kStep <= rows; r += kStep) {
    multiply_block<T, kBlockRows, Packs>(
        {a.data + r * a.row_stride, a.row_stride, a.depth_stride},
        b,
        b_stride,
        c + r * c_stride,
        c_stride,
        depth,
        accumulate);
  }
  for (; r < rows; ++r) {
    multiply_block<T, 1, Packs>(
        {a.data + r * a.row_stride, a.row_stride, a.depth_stride},
        b,
        b_stride,
        c + r * c_stride,
        c_stride,
        depth,
        accumulate);
  }
}

// c[rows, packs] = a[rows, depth] * b[depth, packs], or added to c. Strides in elements.
template <typename T>
void multiply(
    Strided<T> a,
    const T* b,
    std::int64_t b_stride,
    T* c,
    std::int64_t c_stride,
    std::int64_t rows,
    std::int64_t packs,
    std::int64_t depth,
    bool accumulate) {
  constexpr auto kStep = static_cast<std::int64_t>(kBlockPacks);
  std::int64_t p = 0;
  for (; p + kStep <= packs; p += kStep) {
    multiply_columns<T, kBlockPacks>(
        a, b + p * kLanes<T>, b_stride, c + p * kLanes<T>, c_stride, rows, depth, accumulate);
  }
  for (; p < packs; ++p) {
    multiply_columns<T, 1>(
        a, b + p * kLanes<T>, b_stride, c + p * kLanes<T>, c_stride, rows, depth, accumulate);
  }
}

// to[columns, kAttentionTile] = from[rows, columns] transposed; columns beyond `rows` become 0.
template <typename T>
void transpose_in(
    const T* from,
    std::int64_t stride,
    std::int64_t rows,
    std::int64_t columns,
    T* to,
    std::int64_t to_stride) {
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < columns; ++c) {
      to[c * to_stride + r] = from[r * stride + c];
    }
  }
  for (std::int64_t c = 0; c < columns; ++c) {
    for (std::int64_t r = rows; r < to_stride; ++r) {
      to[c * to_stride + r] = T{0};
    }
  }
}

// to[rows, columns] (rows `stride` apart) = from[columns, rows] transposed.
template <typename T>
void transpose_out(
    const T* from,
    std::int64_t from_stride,
    std::int64_t rows,
    std::int64_t columns,
    T* to,
    std::int64_t stride) {
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < columns; ++c) {
      to[r * stride + c] = from[c * from_stride + r];
    }
  }
}

}  // namespace muster::kernels::MUSTER_SIMD_ISA
