// SPDX-License-Identifier: Apache-2.0
// Vectors of the native width, exp, tanh and maxima for tiles of attention.
#pragma once

#include "kernels/attention/cpu/simd/tiles.h"
#include "kernels/cpu/simd/bits.h"
#include "kernels/cpu/simd/pack.h"

#include <cstddef>

namespace muster::kernels::MUSTER_SIMD_ISA {

template <typename T>
using Native = typename NativeVector<T, kNativeBytes>::Type;

template <typename T>
inline constexpr std::int64_t kNativeLanes = kNativeBytes / static_cast<std::int64_t>(sizeof(T));

template <typename T>
inline constexpr T kMinusInfinity = -static_cast<T>(__builtin_inff());

template <typename V, typename T>
MUSTER_INLINE V load_native(const T* p) {
  V value;  // NOLINT(cppcoreguidelines-pro-type-member-init): the next line writes all of it.
  __builtin_memcpy(&value, p, sizeof(value));
  return value;
}

template <typename T, typename V>
MUSTER_INLINE void store_native(T* p, V value) {
  __builtin_memcpy(p, &value, sizeof(value));
}

// The larger; m where x is NaN.
template <typename V>
MUSTER_INLINE V larger_number(V x, V m) {
#if defined(__AVX512F__)
  if constexpr (sizeof(x[0]) == sizeof(float)) {
    return V(_mm512_maskz_max_ps(0xFFFF, __m512(x), __m512(m)));
  }
#elif defined(__AVX2__)
  if constexpr (sizeof(x[0]) == sizeof(float)) {
    return V(_mm256_max_ps(__m256(x), __m256(m)));
  }
#endif
  return x > m ? x : m;
}

// exp(x) for x <= 0, at most 1 ulp off, for floats: 2^n (1 + r + r^2 p(r)), |r| <= ln(2) / 2, p
// fitted by least squares on Chebyshev nodes. Exactly 0 below -87.33; NaN stays NaN.
template <typename V>
MUSTER_INLINE V exp_of_float(V x) {
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
#if defined(__AVX512F__)
  const __mmask16 keep = _mm512_cmp_ps_mask(__m512(x), _mm512_set1_ps(-87.33F), _CMP_NLT_UQ);
  return V(_mm512_maskz_scalef_ps(keep, __m512(y), __m512(n)));
#else
  const V scale = V((Words<V>(shifted) + 127U) << 23U);
  const V product = y * scale;
  return x < -87.33F ? V{} : product;
#endif
}

template <typename V>
MUSTER_INLINE V exp_not_positive(V x) {
  if constexpr (sizeof(x[0]) == sizeof(float)) {
    return exp_of_float(x);
  } else {
    for (unsigned i = 0; i < sizeof(V) / sizeof(x[0]); ++i) {
      x[i] = __builtin_exp(x[i]);
    }
    return x;
  }
}

// tanh to about 3 ulp: its series where |x| < 0.4, else 1 - 2 / (exp(2 |x|) + 1) from exp(-2 |x|).
template <typename V>
MUSTER_INLINE V tanh_native(V x) {
  if constexpr (sizeof(x[0]) == sizeof(float)) {
    const V square = x * x;
    V series = square * (21844.0F / 6081075.0F) - 1382.0F / 155925.0F;
    series = series * square + 62.0F / 2835.0F;
    series = series * square - 17.0F / 315.0F;
    series = series * square + 2.0F / 15.0F;
    series = series * square - 1.0F / 3.0F;
    series = series * square * x + x;
    const V magnitude = x < 0 ? -x : x;
    const V e = exp_not_positive(magnitude * -2.0F);
    const V rest = 1.0F - 2.0F * e / (1.0F + e);
    const V far = x < 0 ? -rest : rest;
    return magnitude < 0.4F ? series : far;
  } else {
    for (unsigned i = 0; i < sizeof(V) / sizeof(x[0]); ++i) {
      x[i] = __builtin_tanh(x[i]);
    }
    return x;
  }
}

constexpr std::int64_t smaller_of(std::int64_t a, std::int64_t b) {
  return a < b ? a : b;
}

}  // namespace muster::kernels::MUSTER_SIMD_ISA
