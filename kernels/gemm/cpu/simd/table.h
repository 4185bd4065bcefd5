// SPDX-License-Identifier: Apache-2.0
// The inner loops of the packed matrix products (kernels/gemm/cpu/packed.h), once per instruction
// set.
//
// Operands are packed in panels of a few lines: unit u of all lines of a panel lie side by side, so
// the inner loop reads both operands forwards. A unit is a float, or two neighbouring bf16 along
// the depth where the machine multiplies pairs of them (AVX512_BF16). Elsewhere bf16 operands are
// floats with the low half rounded away: the same numbers, summed in another order.
#pragma once

#include <muster/common/dtype_enum.h>

#include <cstdint>

namespace muster::kernels {

enum class PanelSide : std::uint8_t { kLeft, kRight };

// `lines` rows of the left or columns of the right operand over `depth` terms of the sums, any
// number of panels. Element (line, k) lies at data[line * stride + k], or at data[k * stride +
// line] where `across`. With `halves` elements are bf16 and lie there instead; only for kBFloat16.
struct PanelSource {
  const float* data{nullptr};
  const std::uint16_t* halves{nullptr};
  std::int64_t stride{0};
  bool across{false};
  std::int64_t lines{0};
  std::int64_t depth{0};
};

// factor * data[row * stride + column] is added to the product; null data: nothing.
struct ProductAddend {
  const float* data{nullptr};
  std::int64_t stride{0};
  float factor{0};
};

// c[rows, columns] = alpha * left * right + first + second: one panel on the left, as many on the
// right as `columns` need. c may be the data of an addend.
struct PanelProduct {
  const float* left{nullptr};
  const float* right{nullptr};
  std::int64_t units{0};
  std::int64_t rows{0};
  std::int64_t columns{0};
  float alpha{1};
  float* c{nullptr};
  std::int64_t stride{0};
  ProductAddend first;
  ProductAddend second;
};

// +-1 vectors that probe a matrix at once.
inline constexpr std::int64_t kProbes = 4;

struct GemmTable {
  const char* name{nullptr};
  std::int64_t left_lines{0};   // lines of a panel on the left
  std::int64_t right_lines{0};  // and on the right
  bool bf16_pairs{false};       // two bf16 to a unit

  // Writes panel after panel, each units * (lines of a panel of that side) units; lines that the
  // last one lacks are 0.
  void (*pack)(PanelSide side, DType type, const PanelSource& source, float* to){nullptr};
  void (*multiply)(DType type, const PanelProduct& product){nullptr};
  // c[n, n] above the diagonal = below it, for the columns [begin, end) of the lower part.
  void (*mirror)(
      float* c, std::int64_t stride, std::int64_t n, std::int64_t begin, std::int64_t end){nullptr};
  // to[cols, rows] = from[rows, cols]^T.
  void (*transpose)(
      const float* from,
      std::int64_t from_stride,
      std::int64_t rows,
      std::int64_t cols,
      float* to,
      std::int64_t to_stride){nullptr};
  // to = from * factor, rounded once; to may be from.
  void (*scale)(const float* from, std::int64_t count, double factor, float* to){nullptr};
  // y[p, :] += signs[p] * row, and dots[p] = row . y[p, :], for each of kProbes rows of y.
  void (*probe_add)(const float* row, std::int64_t cols, const float* signs, float* y){nullptr};
  void (*probe_dot)(const float* row, std::int64_t cols, const float* y, float* dots){nullptr};

  [[nodiscard]] std::int64_t units(DType type, std::int64_t depth) const {
    return type == DType::kBFloat16 && bf16_pairs ? (depth + 1) / 2 : depth;
  }
};

// The table for this machine; MUSTER_KERNELS_ISA=baseline|avx2|avx512 asks for a lesser one
// (avx512: without AVX512_BF16).
[[nodiscard]] const GemmTable& gemm_table();

}  // namespace muster::kernels
