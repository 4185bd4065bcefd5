// SPDX-License-Identifier: Apache-2.0
// Products of small matrices that lie in the first-level cache.
#pragma once

#include "kernels/cpu/simd/pack.h"
#include "kernels/cpu/simd/table.h"

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

// c[rows, packs] += a[rows, depth] * b[depth, packs] with depth <= row only: nothing of a later row
// of b is touched, so a NaN there stays there.
template <typename T>
void multiply_lower(
    Strided<T> a,
    const T* b,
    std::int64_t b_stride,
    T* c,
    std::int64_t c_stride,
    std::int64_t rows,
    std::int64_t packs) {
  constexpr auto kStep = static_cast<std::int64_t>(kBlockRows);
  for (std::int64_t r = 0; r < rows; r += kStep) {
    const std::int64_t count = r + kStep < rows ? kStep : rows - r;
    multiply(
        {a.data + r * a.row_stride, a.row_stride, a.depth_stride},
        b,
        b_stride,
        c + r * c_stride,
        c_stride,
        count,
        packs,
        r,
        true);
    for (std::int64_t i = r; i < r + count; ++i) {
      multiply(
          {a.data + i * a.row_stride + r * a.depth_stride, a.row_stride, a.depth_stride},
          b + r * b_stride,
          b_stride,
          c + i * c_stride,
          c_stride,
          1,
          packs,
          i - r + 1,
          true);
    }
  }
}

// to[columns, rows of to_stride] = from[rows, columns] transposed; beyond `rows` 0 up to to_stride.
template <typename T>
void transpose_in(
    const T* from,
    std::int64_t stride,
    std::int64_t rows,
    std::int64_t columns,
    T* to,
    std::int64_t to_stride) {
  typedef T Four __attribute__((vector_size(4 * sizeof(T))));  // NOLINT
  const std::int64_t whole_rows = rows / 4 * 4;
  const std::int64_t whole_columns = columns / 4 * 4;
  for (std::int64_t r = 0; r < whole_rows; r += 4) {
    for (std::int64_t c = 0; c < whole_columns; c += 4) {
      Four row[4];
      for (std::int64_t i = 0; i < 4; ++i) {
        __builtin_memcpy(
            &row[static_cast<std::size_t>(i)], from + (r + i) * stride + c, sizeof(Four));
      }
      const Four low01 = __builtin_shufflevector(row[0], row[1], 0, 4, 1, 5);
      const Four high01 = __builtin_shufflevector(row[0], row[1], 2, 6, 3, 7);
      const Four low23 = __builtin_shufflevector(row[2], row[3], 0, 4, 1, 5);
      const Four high23 = __builtin_shufflevector(row[2], row[3], 2, 6, 3, 7);
      row[0] = __builtin_shufflevector(low01, low23, 0, 1, 4, 5);
      row[1] = __builtin_shufflevector(low01, low23, 2, 3, 6, 7);
      row[2] = __builtin_shufflevector(high01, high23, 0, 1, 4, 5);
      row[3] = __builtin_shufflevector(high01, high23, 2, 3, 6, 7);
      for (std::int64_t i = 0; i < 4; ++i) {
        __builtin_memcpy(
            to + (c + i) * to_stride + r, &row[static_cast<std::size_t>(i)], sizeof(Four));
      }
    }
  }
  for (std::int64_t c = 0; c < columns; ++c) {
    for (std::int64_t r = c < whole_columns ? whole_rows : 0; r < rows; ++r) {
      to[c * to_stride + r] = from[r * stride + c];
    }
    for (std::int64_t r = rows; r < to_stride; ++r) {
      to[c * to_stride + r] = T{0};
    }
  }
}

// to[rows, padded] = from[rows, columns] (rows `stride` apart), 0 beyond `columns`.
template <typename T>
void copy_padded(
    const T* from,
    std::int64_t stride,
    std::int64_t rows,
    std::int64_t columns,
    T* to,
    std::int64_t padded) {
  const std::int64_t whole = columns / kLanes<T> * kLanes<T>;
  for (std::int64_t r = 0; r < rows; ++r, from += stride, to += padded) {
    for (std::int64_t c = 0; c < whole; c += kLanes<T>) {
      store(to + c, load<Pack<T>>(from + c));
    }
    if (whole < columns) {
      store(to + whole, load_part(from + whole, columns - whole, T{0}));
    }
  }
}

// to[rows, columns] (rows `stride` apart) = from[rows, padded] times the factor of its row.
template <typename T, typename Factor>
MUSTER_INLINE void copy_scaled(
    const T* from,
    std::int64_t padded,
    std::int64_t rows,
    std::int64_t columns,
    T* to,
    std::int64_t stride,
    Factor factor) {
  for (std::int64_t r = 0; r < rows; ++r, from += padded, to += stride) {
    const auto scale = broadcast<Pack<T>>(factor(r));
    std::int64_t c = 0;
    for (; c + kLanes<T> <= columns; c += kLanes<T>) {
      store(to + c, load<Pack<T>>(from + c) * scale);
    }
    if (c < columns) {
      store_part(to + c, load<Pack<T>>(from + c) * scale, columns - c);
    }
  }
}

template <typename T>
void clear(T* values, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    values[i] = T{0};
  }
}

constexpr std::int64_t smaller(std::int64_t a, std::int64_t b) {
  return a < b ? a : b;
}

// 0, 1, 2, ...
template <typename T>
Pack<T> lane_numbers() {
  T numbers[static_cast<std::size_t>(kLanes<T>)];
  for (std::size_t i = 0; i < static_cast<std::size_t>(kLanes<T>); ++i) {
    numbers[i] = static_cast<T>(i);
  }
  return load<Pack<T>>(numbers);
}

}  // namespace muster::kernels::MUSTER_SIMD_ISA
