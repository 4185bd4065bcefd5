// SPDX-License-Identifier: Apache-2.0
// Elements of tensors as lines of units: widened to T, or left in pairs.
#pragma once

#include "kernels/attention/cpu/simd/micro.h"
#include "kernels/gemm/cpu/simd/square.h"

namespace muster::kernels::MUSTER_SIMD_ISA {

MUSTER_INLINE std::int64_t row_offset(const FlashRows& rows, std::int64_t i) {
  return rows.offsets != nullptr ? rows.offsets[i] : i * rows.stride;
}

MUSTER_INLINE std::int64_t row_offset(const FlashTarget& rows, std::int64_t i) {
  return rows.offsets != nullptr ? rows.offsets[i] : i * rows.stride;
}

template <typename E>
MUSTER_INLINE const E* row_at(const FlashRows& rows, std::int64_t i) {
  return static_cast<const E*>(rows.data) + row_offset(rows, i);
}

typedef std::uint16_t SquareHalves __attribute__((vector_size(2 * kSquare)));  // NOLINT

// GCC's conversions of vectors go lane by lane.
MUSTER_INLINE Words<SquareRow> widen_halves(const std::uint16_t* p) {
  SquareHalves raw;  // NOLINT(cppcoreguidelines-pro-type-member-init)
  __builtin_memcpy(&raw, p, sizeof(raw));
#if defined(__AVX512F__)
  return Words<SquareRow>(_mm512_maskz_cvtepu16_epi32(0xFFFF, __m256i(raw)));
#else
  return __builtin_convertvector(raw, Words<SquareRow>);
#endif
}

MUSTER_INLINE SquareHalves narrow_words(Words<SquareRow> words) {
#if defined(__AVX512F__)
  return SquareHalves(_mm512_maskz_cvtepi32_epi16(0xFFFF, __m512i(words)));
#else
  return __builtin_convertvector(words, SquareHalves);
#endif
}

MUSTER_INLINE SquareRow widen_bf16(const std::uint16_t* p, std::int64_t count) {
  if (count >= kSquare) {
    return from_bf16<SquareRow>(widen_halves(p));
  }
  std::uint16_t some[kSquare] = {};
  for (std::int64_t i = 0; i < count; ++i) {
    some[i] = p[i];
  }
  return from_bf16<SquareRow>(widen_halves(some));
}

// kSquare elements of a row from `first` on as floats, 0 beyond its end. kHalf: of bf16.
template <bool kHalf>
MUSTER_INLINE SquareRow load_floats(const FlashRows& rows, std::int64_t i, std::int64_t first) {
  const std::int64_t count = rows.head_dim - first;
  if constexpr (kHalf) {
    return widen_bf16(row_at<std::uint16_t>(rows, i) + first, count);
  } else {
    return load_row(row_at<float>(rows, i) + first, count);
  }
}

// kSquare pairs of a bf16 row from pair `first` on.
MUSTER_INLINE SquareRow load_pairs(const FlashRows& rows, std::int64_t i, std::int64_t first) {
  const std::uint16_t* p = row_at<std::uint16_t>(rows, i) + 2 * first;
  const std::int64_t count = rows.head_dim - 2 * first;
  SquareRow result;  // NOLINT(cppcoreguidelines-pro-type-member-init)
  if (count >= 2 * kSquare) {
    __builtin_memcpy(&result, p, sizeof(result));
    return result;
  }
  std::uint16_t some[2 * kSquare] = {};
  for (std::int64_t k = 0; k < count; ++k) {
    some[k] = p[k];
  }
  __builtin_memcpy(&result, some, sizeof(result));
  return result;
}

template <typename Math, bool kHalf>
MUSTER_INLINE SquareRow load_units(const FlashRows& rows, std::int64_t i, std::int64_t first) {
  if constexpr (Math::kPair == 2) {
    return load_pairs(rows, i, first);
  } else {
    return load_floats<kHalf>(rows, i, first);
  }
}

// f(whether elements are bf16, as a type)
template <bool kValue>
struct Half {
  static constexpr bool kHalf = kValue;
};

template <typename F>
MUSTER_INLINE void with_type(DType type, F f) {
  if (type == DType::kBFloat16) {
    f(Half<true>{});
  } else {
    f(Half<false>{});
  }
}

// Finite elements as they are, others 0; `bad` gathers NaN where one was not finite.
MUSTER_INLINE SquareRow keep_finite(SquareRow x, SquareRow& bad) {
  const SquareRow difference = x - x;  // 0, or NaN
  bad += difference;
  return difference == 0.0F ? x : SquareRow{};
}

MUSTER_INLINE bool all_zero(SquareRow x) {
  bool result = true;
  for (std::int64_t i = 0; i < kSquare; ++i) {
    result = result && x[i] == 0.0F;
  }
  return result;
}

}  // namespace muster::kernels::MUSTER_SIMD_ISA
