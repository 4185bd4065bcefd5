// SPDX-License-Identifier: Apache-2.0
// The inner loop of attention: a few lines by up to three registers of sums stay in registers while
// the sum is walked once.
#pragma once

#include "kernels/attention/cpu/simd/math.h"

namespace muster::kernels::MUSTER_SIMD_ISA {

// Registers: 8 x 3 sums, 3 of the right operand and 1 of the left of 32; 4 x 3, 3 and 1 of 16.
#if defined(__AVX512F__) || defined(__aarch64__)
inline constexpr std::size_t kLines = 8;
#else
inline constexpr std::size_t kLines = 4;
#endif
inline constexpr std::size_t kColumns = 3;
static_assert(kFlashRows % static_cast<std::int64_t>(kLines) == 0);

template <typename T>
inline constexpr std::int64_t kNativesOfPanel = kFlashLanes<T> / kNativeLanes<T>;
template <typename T>
inline constexpr std::int64_t kNativesOfPack = kFlashPackLanes<T> / kNativeLanes<T>;

// sum + a * b, a the same in all lanes.
template <typename T>
struct PlainMath {
  using Scalar = T;
  using Vector = Native<T>;
  static constexpr std::int64_t kPair = 1;

  MUSTER_INLINE static Vector unit(const T* a) { return *a - Vector{}; }

  MUSTER_INLINE static Vector add(Vector sum, Vector a, Vector b) { return sum + a * b; }
};

#if defined(__AVX512BF16__)
// sum + both products of a pair of bf16.
struct PairMath {
  using Scalar = float;
  using Vector = Native<float>;
  static constexpr std::int64_t kPair = 2;

  MUSTER_INLINE static Vector unit(const float* a) {
    std::int32_t bits;  // NOLINT(cppcoreguidelines-init-variables): the next line writes it
    __builtin_memcpy(&bits, a, sizeof(bits));
    return Vector(_mm512_maskz_set1_epi32(0xFFFF, bits));
  }

  MUSTER_INLINE static Vector add(Vector sum, Vector a, Vector b) {
    return Vector(_mm512_dpbf16_ps(__m512(sum), __m512bh(a), __m512bh(b)));
  }
};
#endif

#if defined(__AVX512BF16__)
// bf16 of `first` in the low halves, of `second` in the high ones.
MUSTER_INLINE Native<float> pair_units(Native<float> first, Native<float> second) {
  typedef std::uint16_t Halves __attribute__((vector_size(64)));  // NOLINT
  constexpr Halves kOrder{0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                          8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const auto joined = __m512i(_mm512_cvtne2ps_pbh(__m512(second), __m512(first)));
  return Native<float>(_mm512_maskz_permutexvar_epi16(0xFFFFFFFF, __m512i(kOrder), joined));
}
#endif

// Unit u of line r of the left operand lies at data[r * line_stride + u * unit_stride].
template <typename T>
struct Left {
  const T* data;
  std::int64_t line_stride;
  std::int64_t unit_stride;
};

template <typename T>
MUSTER_INLINE Left<T> packed_left(const T* data) {
  return {data, 1, kFlashRows};
}

// sums += left * right over `units`; columns before kFirst are left alone.
template <typename Math, std::size_t kFirst, std::size_t Columns>
MUSTER_INLINE void accumulate(
    typename Math::Vector (&sums)[kLines][Columns],
    Left<typename Math::Scalar> left,
    const typename Math::Scalar* right,
    std::int64_t right_stride,
    std::int64_t units) {
  using T = typename Math::Scalar;
  using V = typename Math::Vector;
  const T* a = left.data;
#pragma GCC unroll 2
  for (std::int64_t u = 0; u < units; ++u) {
    V b[Columns];
#pragma GCC unroll 3
    for (std::size_t c = kFirst; c < Columns; ++c) {
      b[c] = load_native<V>(right + static_cast<std::int64_t>(c) * kNativeLanes<T>);
    }
#pragma GCC unroll 8
    for (std::size_t r = 0; r < kLines; ++r) {
      const V x = Math::unit(a + static_cast<std::int64_t>(r) * left.line_stride);
#pragma GCC unroll 3
      for (std::size_t c = kFirst; c < Columns; ++c) {
        sums[r][c] = Math::add(sums[r][c], x, b[c]);
      }
    }
    a += left.unit_stride;
    right += right_stride;
  }
}

// As accumulate, column c over units up to ends[c] (not descending) only.
template <typename Math, std::size_t kFirst, std::size_t Columns>
MUSTER_INLINE void accumulate_steps(
    typename Math::Vector (&sums)[kLines][Columns],
    Left<typename Math::Scalar> left,
    const typename Math::Scalar* right,
    std::int64_t right_stride,
    std::int64_t begin,
    const std::int64_t (&ends)[Columns]) {
  left.data += begin * left.unit_stride;
  right += begin * right_stride;
  accumulate<Math, kFirst>(sums, left, right, right_stride, ends[kFirst] - begin);
  if constexpr (kFirst + 1 < Columns) {
    left.data -= begin * left.unit_stride;
    right -= begin * right_stride;
    accumulate_steps<Math, kFirst + 1>(sums, left, right, right_stride, ends[kFirst], ends);
  }
}

// f(number of columns as a type) for 1 to kColumns columns.
template <std::size_t N>
struct ColumnCount {
  static constexpr std::size_t kValue = N;
};

template <typename F>
MUSTER_INLINE void with_columns(std::int64_t count, F f) {
  if (count >= 3) {
    f(ColumnCount<3>{});
  } else if (count == 2) {
    f(ColumnCount<2>{});
  } else {
    f(ColumnCount<1>{});
  }
}

// How much of a tile a panel needs.
template <typename T>
struct TilePlan {
  std::int64_t natives;            // registers of lanes that exist
  std::int64_t rows[kFlashPacks];  // keys computed for a pack, in whole panels, not descending
  std::int64_t all_rows;           // of the last pack that exists
  std::int64_t unmasked;           // keys that every lane sees
  alignas(64) T limits[kFlashLanes<T>];

  [[nodiscard]] std::int64_t rows_of(std::int64_t native) const {
    return rows[native / kNativesOfPack<T>];
  }
};

// Lanes that do not exist see what the last one does.
template <typename T>
MUSTER_INLINE void plan_tile(
    std::int64_t lanes, const T* limits, std::int64_t count, TilePlan<T>& plan) {
  plan.natives = (lanes + kNativeLanes<T> - 1) / kNativeLanes<T>;
  plan.unmasked = count;
  std::int64_t most = 0;
  for (std::int64_t p = 0; p < kFlashPacks; ++p) {
    for (std::int64_t i = p * kFlashPackLanes<T>; i < (p + 1) * kFlashPackLanes<T>; ++i) {
      const auto all = static_cast<T>(count);
      const T wanted = limits == nullptr ? all : limits[i < lanes ? i : lanes - 1];
      const T limit = wanted < all ? wanted : all;
      plan.limits[i] = limit;
      const auto seen = static_cast<std::int64_t>(limit);
      most = seen > most ? seen : most;
      plan.unmasked = seen < plan.unmasked ? seen : plan.unmasked;
    }
    plan.rows[p] = flash_round_up(most, kFlashRows);
  }
  plan.all_rows = plan.rows[(lanes - 1) / kFlashPackLanes<T>];
}

}  // namespace muster::kernels::MUSTER_SIMD_ISA
