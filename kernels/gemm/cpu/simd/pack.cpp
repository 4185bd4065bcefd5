// SPDX-License-Identifier: Apache-2.0
// Operands of the packed products: copies into panels, with the rounding to bf16.
#include "kernels/gemm/cpu/simd/square.h"

namespace muster::kernels::MUSTER_SIMD_ISA {

namespace {

// A unit is one float.
struct Single {
  static constexpr std::int64_t kDepth = 1;  // terms in a unit

  // kSquare units of one line with `depth` terms left.
  template <typename Element>
  MUSTER_INLINE static SquareRow along(const Element* p, std::int64_t depth) {
    return load_row(p, depth);
  }

  // One unit of 16 lines, of which `lines` exist.
  template <typename Element>
  MUSTER_INLINE static Pack<float> across(
      const Element* p, std::int64_t /*stride*/, std::int64_t lines, std::int64_t /*depth*/) {
    return load_some(p, lines);
  }
};

#if defined(__AVX512BF16__)
// A unit is two neighbouring terms in bf16.
struct Pair {
  static constexpr std::int64_t kDepth = 2;
  typedef short Wide __attribute__((vector_size(64)));  // NOLINT: see NativeVector

  // Pairs of the 16 terms of one and the 16 of the next place in the depth.
  MUSTER_INLINE static Pack<float> interleave(Wide halves) {
    return {Pack<float>::Native(__builtin_shufflevector(
        halves,
        halves,
        0,
        16,
        1,
        17,
        2,
        18,
        3,
        19,
        4,
        20,
        5,
        21,
        6,
        22,
        7,
        23,
        8,
        24,
        9,
        25,
        10,
        26,
        11,
        27,
        12,
        28,
        13,
        29,
        14,
        30,
        15,
        31))};
  }

  MUSTER_INLINE static SquareRow along(const float* p, std::int64_t depth) {
    const SquareRow low = load_row(p, depth);
    const SquareRow high = depth > kSquare ? load_row(p + kSquare, depth - kSquare) : SquareRow{};
    return SquareRow(_mm512_cvtne2ps_pbh(__m512(high), __m512(low)));
  }

  MUSTER_INLINE static Pack<float> across(
      const float* p, std::int64_t stride, std::int64_t lines, std::int64_t depth) {
    const Pack<float> first = load_some(p, lines);
    const Pack<float> second = depth > 1 ? load_some(p + stride, lines) : Pack<float>{};
    return interleave(Wide(_mm512_cvtne2ps_pbh(__m512(second.v), __m512(first.v))));
  }

  MUSTER_INLINE static SquareRow along(const std::uint16_t* p, std::int64_t depth) {
    const std::int64_t count = least(depth, 2 * kSquare);
    const auto mask = static_cast<__mmask32>((std::uint64_t{1} << count) - 1);
    return SquareRow(_mm512_maskz_loadu_epi16(mask, p));
  }

  MUSTER_INLINE static Pack<float> across(
      const std::uint16_t* p, std::int64_t stride, std::int64_t lines, std::int64_t depth) {
    const std::int64_t count = lines <= 0 ? 0 : least(lines, kSquare);
    const auto mask = static_cast<__mmask16>((1U << count) - 1U);
    const __m256i first = _mm256_maskz_loadu_epi16(mask, p);
    const __m256i second =
        depth > 1 ? _mm256_maskz_loadu_epi16(mask, p + stride) : _mm256_setzero_si256();
    return interleave(
        Wide(_mm512_maskz_inserti64x4(0xFF, _mm512_castsi256_si512(first), second, 1)));
  }
};
#endif

// What is packed: a PanelSource with the type of its elements.
template <typename Element>
struct Source {
  const Element* data;
  std::int64_t stride;
  bool across;
  std::int64_t lines;
  std::int64_t depth;
};

// Lines that lie along the depth: squares are transposed. One panel.
template <typename Unit, std::int64_t Lines, typename Element>
void pack_along(const Source<Element>& source, float* to) {
  for (std::int64_t first = 0; first < Lines; first += kSquare) {
    const std::int64_t kept = least(Lines - first, kSquare);
    const std::int64_t valid = source.lines - first;
    const Element* line = source.data + first * source.stride;
    for (std::int64_t k = 0; k < source.depth; k += kSquare * Unit::kDepth) {
      const std::int64_t depth = source.depth - k;
      SquareRow rows[kSquare];
#pragma GCC unroll 16
      for (std::int64_t i = 0; i < kSquare; ++i) {
        rows[i] = i < valid ? Unit::along(line + i * source.stride + k, depth) : SquareRow{};
      }
      transpose_square(rows);
      const std::int64_t units = (depth + Unit::kDepth - 1) / Unit::kDepth;
      float* unit_to = to + k / Unit::kDepth * Lines + first;
#pragma GCC unroll 16
      for (std::int64_t u = 0; u < kSquare; ++u) {
        if (u < units) {
          store_row(unit_to + u * Lines, rows[u], kept);
        }
      }
    }
  }
}

// Lines side by side: copies, of a few rows for all panels at a time, because the rows of a matrix
// whose width is a power of two all fall on the same places of a cache.
template <typename Unit, std::int64_t Lines, typename Element>
void pack_across(const Source<Element>& source, std::int64_t panel_size, float* to) {
  constexpr std::int64_t kRows = 4;
  for (std::int64_t begin = 0; begin < source.depth; begin += kRows) {
    const std::int64_t end = least(begin + kRows, source.depth);
    float* panel = to + begin / Unit::kDepth * Lines;
    for (std::int64_t line = 0; line < source.lines; line += Lines, panel += panel_size) {
      float* unit_to = panel;
      for (std::int64_t k = begin; k < end; k += Unit::kDepth, unit_to += Lines) {
        const Element* from = source.data + k * source.stride + line;
#pragma GCC unroll 2
        for (std::int64_t first = 0; first < Lines; first += kLanes<float>) {
          const std::int64_t lines = least(source.lines - line, Lines) - first;
          const Pack<float> unit =
              Unit::across(from + first, source.stride, lines, source.depth - k);
          store_some(unit_to + first, unit, Lines - first);
        }
      }
    }
  }
}

template <typename Unit, std::int64_t Lines, typename Element>
MUSTER_INLINE void pack_lines(Source<Element> source, float* to) {
  const std::int64_t panel_size = (source.depth + Unit::kDepth - 1) / Unit::kDepth * Lines;
  if (source.across) {
    pack_across<Unit, Lines>(source, panel_size, to);
    return;
  }
  for (; source.lines > 0; source.lines -= Lines, to += panel_size) {
    pack_along<Unit, Lines>(source, to);
    source.data += Lines * source.stride;
  }
}

template <typename Unit, typename Element>
MUSTER_INLINE void pack_side(
    PanelSide side, const PanelSource& source, const Element* data, float* to) {
  const Source<Element> typed{data, source.stride, source.across, source.lines, source.depth};
  if (side == PanelSide::kLeft) {
    pack_lines<Unit, static_cast<std::int64_t>(kLeftLines)>(typed, to);
  } else {
    pack_lines<Unit, kRightLines>(typed, to);
  }
}

#if defined(__AVX512BF16__)
using Bf16Unit = Pair;
#else
using Bf16Unit = Single;
#endif

#if !defined(__AVX512BF16__)
// To the nearest bf16, ties to even, as the instruction does.
void round_to_bf16(float* values, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    std::uint32_t bits;  // NOLINT(cppcoreguidelines-init-variables): the next line writes it
    __builtin_memcpy(&bits, values + i, sizeof(bits));
    bits = (bits + 0x7FFFU + ((bits >> 16) & 1U)) & 0xFFFF0000U;
    __builtin_memcpy(values + i, &bits, sizeof(bits));
  }
}
#endif

}  // namespace

void pack(PanelSide side, DType type, const PanelSource& source, float* to) {
  if (source.halves != nullptr) {
    pack_side<Bf16Unit>(side, source, source.halves, to);
    return;
  }
#if defined(__AVX512BF16__)
  if (type == DType::kBFloat16) {
    pack_side<Pair>(side, source, source.data, to);
    return;
  }
  pack_side<Single>(side, source, source.data, to);
#else
  pack_side<Single>(side, source, source.data, to);
  if (type == DType::kBFloat16) {
    const std::int64_t lines =
        side == PanelSide::kLeft ? static_cast<std::int64_t>(kLeftLines) : kRightLines;
    round_to_bf16(to, (source.lines + lines - 1) / lines * lines * source.depth);
  }
#endif
}

}  // namespace muster::kernels::MUSTER_SIMD_ISA
