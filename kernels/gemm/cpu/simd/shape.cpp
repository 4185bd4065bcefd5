// SPDX-License-Identifier: Apache-2.0
// What surrounds the packed products: mirrored triangles, scaled copies, probes.
#include "kernels/gemm/cpu/simd/square.h"

namespace muster::kernels::MUSTER_SIMD_ISA {

namespace {

// to[columns, rows] = from[rows, columns]^T for one square, rows and columns <= kSquare.
MUSTER_INLINE void transpose_part(
    const float* from,
    std::int64_t from_stride,
    float* to,
    std::int64_t to_stride,
    std::int64_t rows,
    std::int64_t columns) {
  SquareRow square[kSquare];
#pragma GCC unroll 16
  for (std::int64_t i = 0; i < kSquare; ++i) {
    square[i] = i < rows ? load_row(from + i * from_stride, columns) : SquareRow{};
  }
  transpose_square(square);
#pragma GCC unroll 16
  for (std::int64_t i = 0; i < kSquare; ++i) {
    if (i < columns) {
      store_row(to + i * to_stride, square[i], rows);
    }
  }
}

}  // namespace

// By stripes of columns: what is written lies together.
void mirror(float* c, std::int64_t stride, std::int64_t n, std::int64_t begin, std::int64_t end) {
  for (std::int64_t column = begin; column < end; column += kSquare) {
    const std::int64_t columns = least(end - column, kSquare);
    for (std::int64_t i = column; i < column + columns; ++i) {
      for (std::int64_t j = column; j < i; ++j) {
        c[j * stride + i] = c[i * stride + j];
      }
    }
    for (std::int64_t row = column + columns; row < n; row += kSquare) {
      transpose_part(
          c + row * stride + column,
          stride,
          c + column * stride + row,
          stride,
          least(n - row, kSquare),
          columns);
    }
  }
}

void scale(const float* from, std::int64_t count, double factor, float* to) {
  for (std::int64_t i = 0; i < count; ++i) {
    to[i] = static_cast<float>(static_cast<double>(from[i]) * factor);
  }
}

void transpose(
    const float* from,
    std::int64_t from_stride,
    std::int64_t rows,
    std::int64_t cols,
    float* to,
    std::int64_t to_stride) {
  constexpr std::int64_t kBlock = 64;  // columns whose rows of `to` stay in the first-level cache
  for (std::int64_t column0 = 0; column0 < cols; column0 += kBlock) {
    const std::int64_t end = least(column0 + kBlock, cols);
    for (std::int64_t row = 0; row < rows; row += kSquare) {
      for (std::int64_t column = column0; column < end; column += kSquare) {
        transpose_part(
            from + row * from_stride + column,
            from_stride,
            to + column * to_stride + row,
            to_stride,
            least(rows - row, kSquare),
            least(end - column, kSquare));
      }
    }
  }
}

void probe_add(const float* row, std::int64_t cols, const float* signs, float* y) {
  for (std::int64_t p = 0; p < kProbes; ++p) {
    float* sum = y + p * cols;
    const float sign = signs[p];
    for (std::int64_t i = 0; i < cols; ++i) {
      sum[i] += sign * row[i];
    }
  }
}

void probe_dot(const float* row, std::int64_t cols, const float* y, float* dots) {
  for (std::int64_t p = 0; p < kProbes; ++p) {
    const float* other = y + p * cols;
    Pack<float> sums{};
    for (std::int64_t i = 0; i < cols; i += kLanes<float>) {
      sums = sums + load_some(row + i, cols - i) * load_some(other + i, cols - i);
    }
    float lanes[kLanes<float>];
    store(lanes, sums);
    float sum = 0;
    for (const float lane : lanes) {
      sum += lane;
    }
    dots[p] = sum;
  }
}

}  // namespace muster::kernels::MUSTER_SIMD_ISA
