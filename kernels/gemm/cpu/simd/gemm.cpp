// SPDX-License-Identifier: Apache-2.0
// Micro-kernels: a tile of the result stays in registers while the depth is walked once.
#include "kernels/gemm/cpu/simd/helpers.h"
#include "kernels/gemm/cpu/simd/table.h"

namespace muster::kernels::MUSTER_SIMD_ISA {

namespace {

using Floats = Pack<float>;

// sum + a * b, a the same in all lanes.
struct MultiplyAdd {
  MUSTER_INLINE static Floats unit(const float* a) { return broadcast<Floats>(*a); }

  MUSTER_INLINE static Floats add(Floats sum, Floats a, Floats b) { return sum + a * b; }
};

#if defined(__AVX512BF16__)
// sum + the two products of a pair of bf16.
struct PairMultiplyAdd {
  MUSTER_INLINE static Floats unit(const float* a) { return broadcast_bits(a); }

  MUSTER_INLINE static Floats add(Floats sum, Floats a, Floats b) {
    return {Floats::Native(_mm512_dpbf16_ps(__m512(sum.v), __m512bh(a.v), __m512bh(b.v)))};
  }
};
#endif

struct Tile {  // NOLINT(cppcoreguidelines-pro-type-member-init): every member is set before use
  const float* left;
  const float* right;
  std::int64_t units;
  float alpha;
  float* c;
  std::int64_t stride;
  ProductAddend first;
  ProductAddend second;
  std::int64_t columns;  // of the tile that exist
};

// The sums of a tile, which has gone through memory so that this is compiled once and not in each
// of the kernels: a few dozen cycles of some thousands.
void write_tile(const Tile& tile, const float* sums, std::int64_t rows, std::int64_t width) {
  const auto alpha = broadcast<Floats>(tile.alpha);
  const auto first = broadcast<Floats>(tile.first.factor);
  const auto second = broadcast<Floats>(tile.second.factor);
  for (std::int64_t row = 0; row < rows; ++row, sums += width) {
    for (std::int64_t column = 0; column < least(width, tile.columns); column += kLanes<float>) {
      const std::int64_t count = tile.columns - column;
      Floats value = alpha * load<Floats>(sums + column);
      if (tile.first.data != nullptr) {
        const float* from = tile.first.data + row * tile.first.stride + column;
        value = value + first * load_some(from, count);
      }
      if (tile.second.data != nullptr) {
        const float* from = tile.second.data + row * tile.second.stride + column;
        value = value + second * load_some(from, count);
      }
      store_some(tile.c + row * tile.stride + column, value, count);
    }
  }
}

template <typename Arithmetic, std::size_t Rows, std::size_t Packs>
void multiply_tile(const Tile& tile) {
  Floats sums[Rows][Packs] = {};
  const float* left = tile.left;
  const float* right = tile.right;
  for (std::size_t r = 0; r < Rows; ++r) {
    __builtin_prefetch(tile.c + static_cast<std::int64_t>(r) * tile.stride, 1);
    __builtin_prefetch(tile.c + static_cast<std::int64_t>(r) * tile.stride + 31, 1);
  }
  for (std::int64_t unit = 0; unit < tile.units; ++unit) {
    Floats b[Packs];
#pragma GCC unroll 2
    for (std::size_t p = 0; p < Packs; ++p) {
      b[p] = load<Floats>(right + static_cast<std::int64_t>(p) * kLanes<float>);
    }
#pragma GCC unroll 16
    for (std::size_t r = 0; r < Rows; ++r) {
      const Floats a = Arithmetic::unit(left + r);
#pragma GCC unroll 2
      for (std::size_t p = 0; p < Packs; ++p) {
        sums[r][p] = Arithmetic::add(sums[r][p], a, b[p]);
      }
    }
    left += kLeftLines;
    right += kRightLines;
  }
  constexpr std::int64_t kWidth = static_cast<std::int64_t>(Packs) * kLanes<float>;
  alignas(64) float out[Rows * static_cast<std::size_t>(kWidth)];
#pragma GCC unroll 16
  for (std::size_t r = 0; r < Rows; ++r) {
#pragma GCC unroll 2
    for (std::size_t p = 0; p < Packs; ++p) {
      store(out + (r * Packs + p) * static_cast<std::size_t>(kLanes<float>), sums[r][p]);
    }
  }
  write_tile(tile, out, static_cast<std::int64_t>(Rows), kWidth);
}

// The kernel for a number of rows: almost always the first asked for.
template <typename Arithmetic, std::size_t Packs, std::size_t Rows = kLeftLines>
MUSTER_INLINE void multiply_rows(const Tile& tile, std::int64_t rows) {
  if (rows == static_cast<std::int64_t>(Rows)) {
    multiply_tile<Arithmetic, Rows, Packs>(tile);
  } else if constexpr (Rows > 1) {
    multiply_rows<Arithmetic, Packs, Rows - 1>(tile, rows);
  }
}

MUSTER_INLINE ProductAddend moved(ProductAddend addend, std::int64_t columns) {
  if (addend.data != nullptr) {
    addend.data += columns;
  }
  return addend;
}

template <typename Arithmetic>
void multiply_panels(const PanelProduct& product) {
  for (std::int64_t column = 0; column < product.columns; column += kRightLines) {
    const Tile tile{
        product.left,
        product.right + column * product.units,
        product.units,
        product.alpha,
        product.c + column,
        product.stride,
        moved(product.first, column),
        moved(product.second, column),
        product.columns - column};
    if constexpr (kRightPacks > 1) {
      if (tile.columns > kLanes<float>) {
        multiply_rows<Arithmetic, kRightPacks>(tile, product.rows);
        continue;
      }
    }
    multiply_rows<Arithmetic, 1>(tile, product.rows);
  }
}

}  // namespace

void multiply(DType type, const PanelProduct& product) {
#if defined(__AVX512BF16__)
  if (type == DType::kBFloat16) {
    multiply_panels<PairMultiplyAdd>(product);
    return;
  }
#endif
  static_cast<void>(type);
  multiply_panels<MultiplyAdd>(product);
}

extern const GemmTable kGemmTable;

#define MUSTER_NAME_OF(isa) #isa
#define MUSTER_NAME(isa) MUSTER_NAME_OF(isa)
const GemmTable kGemmTable{
    .name = MUSTER_NAME(MUSTER_SIMD_ISA),
    .left_lines = kLeftLines,
    .right_lines = kRightLines,
    .bf16_pairs = kBf16Pairs,
    .pack = &MUSTER_SIMD_ISA::pack,
    .multiply = &MUSTER_SIMD_ISA::multiply,
    .mirror = &MUSTER_SIMD_ISA::mirror,
    .transpose = &MUSTER_SIMD_ISA::transpose,
    .scale = &MUSTER_SIMD_ISA::scale,
    .probe_add = &MUSTER_SIMD_ISA::probe_add,
    .probe_dot = &MUSTER_SIMD_ISA::probe_dot};

}  // namespace muster::kernels::MUSTER_SIMD_ISA
