// SPDX-License-Identifier: Apache-2.0
// exp, sums and widening on packs.
#pragma once

#include "kernels/cpu/simd/pack.h"

#include <cstddef>

namespace muster::kernels::MUSTER_SIMD_ISA {

// What the caller knows of the argument of exp.
enum class ExpRange { kAny, kNotPositive };

// exp of a register of floats: 2^n * (1 + r + r^2 p(r)), |r| <= ln(2)/2, p fitted by least squares
// on Chebyshev nodes to 3.6e-9. Relative error below 2e-7 on [-87.33, 88.37]; below that exactly 0,
// above +Inf; NaN stays NaN. (libm's expf takes one float at a time and is ten times slower.)
template <ExpRange kRange, typename V>
MUSTER_INLINE V exp_float(V x) {
  typedef std::uint32_t Bits __attribute__((vector_size(sizeof(V))));  // NOLINT
  constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer
  const V shifted = x * 1.44269504F + kRound;
  const V n = shifted - kRound;
  V r = x - n * 0.693359375F;
  r = r - n * -2.12194440e-4F;
  V p = r * 1.3751279128e-3F + 8.3689517772e-3F;
  p = p * r + 4.1669538691e-2F;
  p = p * r + 1.6666518165e-1F;
  p = p * r + 4.9999988561e-1F;
  const V y = p * (r * r) + r + 1.0F;
  const V scale = V((Bits(shifted) + 127U) << 23U);
  const V product = y * scale;
  const V bounded = x < -87.33F ? V{} : product;
  if constexpr (kRange == ExpRange::kNotPositive) {
    return bounded;
  }
  return x > 88.37F ? V{} + __builtin_inff() : bounded;
}

template <ExpRange kRange, typename V>
MUSTER_INLINE V exp_native(V x) {
  if constexpr (sizeof(x[0]) == sizeof(float)) {
    return exp_float<kRange>(x);
  } else {
    for (unsigned i = 0; i < sizeof(V) / sizeof(x[0]); ++i) {
      x[i] = __builtin_exp(x[i]);
    }
    return x;
  }
}

template <ExpRange kRange = ExpRange::kAny, typename P>
MUSTER_INLINE P exponential(P a) {
  return map([](auto x) MUSTER_INLINE_LAMBDA { return exp_native<kRange>(x); }, a);
}

// Sum of the lanes, pairwise.
template <typename T, int B, bool N>
MUSTER_INLINE T sum(PackOf<T, B, N> a) {
  constexpr std::size_t kCount = B / sizeof(T);
  T lanes[kCount];
  store(lanes, a);
  for (std::size_t width = kCount / 2; width > 0; width /= 2) {
    for (std::size_t i = 0; i < width; ++i) {
      lanes[i] += lanes[i + width];
    }
  }
  return lanes[0];
}

// Largest lane, NaN if any lane is NaN.
template <typename T, int B, bool N>
MUSTER_INLINE T max_lane(PackOf<T, B, N> a) {
  constexpr std::size_t kCount = B / sizeof(T);
  T lanes[kCount];
  store(lanes, a);
  T result = lanes[0];
  for (std::size_t i = 1; i < kCount; ++i) {
    const bool take = lanes[i] > result || lanes[i] != lanes[i];
    result = take ? lanes[i] : result;
  }
  return result;
}

// Floats as doubles, in a pack of twice the size.
template <int B>
MUSTER_INLINE PackOf<double, 2 * B> widen(PackOf<float, B, true> a) {
  typedef float HalfVector __attribute__((vector_size(B / 2)));  // NOLINT
  using Wide = typename NativeVector<double, B>::Type;
  HalfVector halves[2];
  __builtin_memcpy(halves, &a, B);
  return {{__builtin_convertvector(halves[0], Wide)}, {__builtin_convertvector(halves[1], Wide)}};
}

template <int B>
MUSTER_INLINE PackOf<double, 2 * B> widen(PackOf<float, B, false> a) {
  return {widen(a.lo), widen(a.hi)};
}

}  // namespace muster::kernels::MUSTER_SIMD_ISA
