// Floats as bits: 16-bit formats, stochastic rounding and 8-bit codes on one register of floats,
// and loads and stores of packs that change the width of their elements.
#pragma once

#include "cpu/quant_tables.h"
#include "cpu/simd/pack.h"

namespace muster::kernels::MUSTER_SIMD_ISA {

// The integer vectors that belong to a register V of floats: 32, 16 and 8 bits per lane.
template <typename V>
struct BitsOf {
  typedef std::uint32_t Words __attribute__((vector_size(sizeof(V))));       // NOLINT
  typedef std::int32_t Signed __attribute__((vector_size(sizeof(V))));       // NOLINT
  typedef std::uint16_t Halves __attribute__((vector_size(sizeof(V) / 2)));  // NOLINT
  typedef std::uint8_t Bytes __attribute__((vector_size(sizeof(V) / 4)));    // NOLINT
};

template <typename V>
using Words = typename BitsOf<V>::Words;

inline constexpr std::uint32_t kSignBit = 0x80000000U;
inline constexpr std::uint32_t kInfinityBits = 0x7F800000U;

// Calls f(i, register) -> integers of one lane each for every register of the pack and stores them
// as T; `i` counts lanes.
template <typename T, typename F, int B>
MUSTER_INLINE void store_as(T* p, PackOf<float, B, true> a, F f, int first = 0) {
  typedef T Narrow __attribute__((vector_size(B / 4 * static_cast<int>(sizeof(T)))));  // NOLINT
  const Narrow result = __builtin_convertvector(f(first, a.v), Narrow);
  __builtin_memcpy(p, &result, sizeof(result));
}

template <typename T, typename F, int B>
MUSTER_INLINE void store_as(T* p, PackOf<float, B, false> a, F f, int first = 0) {
  store_as(p, a.lo, f, first);
  store_as(p + B / 8, a.hi, f, first + B / 8);
}

// f(register of 32-bit integers) -> register of floats, of integers of type T at p.
template <typename P, typename T, typename F>
MUSTER_INLINE P load_as(const T* p, F f) {
  if constexpr (sizeof(P) <= kNativeBytes) {
    typedef T Narrow __attribute__((vector_size(sizeof(P) / 4 * sizeof(T))));  // NOLINT
    Narrow raw;
    __builtin_memcpy(&raw, p, sizeof(raw));
    return {f(__builtin_convertvector(raw, Words<typename P::Native>))};
  } else {
    using Half = typename P::Half;
    return {load_as<Half>(p, f), load_as<Half>(p + sizeof(P) / 8, f)};
  }
}

// 0, 1, 2, .. in the lanes of V.
template <typename V>
MUSTER_INLINE Words<V> lane_numbers() {
  Words<V> result{};
  for (unsigned i = 0; i < sizeof(V) / 4; ++i) {
    result[i] = i;
  }
  return result;
}

// ---- bf16 and fp16 -------------------------------------------------------------------------

template <typename W>
MUSTER_INLINE W select(W condition, W a, W b) {
  return condition != 0U ? a : b;
}

// Bits of the bf16 next to x, ties to even. A NaN keeps its upper bits and becomes quiet.
template <typename V>
MUSTER_INLINE Words<V> to_bf16(V x) {
  const auto bits = Words<V>(x);
  const auto rounded = (bits + 0x7FFFU + ((bits >> 16U) & 1U)) >> 16U;
  return (bits & ~kSignBit) > kInfinityBits ? ((bits >> 16U) | 0x40U) : rounded;
}

template <typename V>
MUSTER_INLINE V from_bf16(Words<V> bits) {
  return V(bits << 16U);
}

// Bits of the fp16 next to x, ties to even; 65520 and above become infinity.
template <typename V>
MUSTER_INLINE Words<V> to_fp16(V x) {
  const auto bits = Words<V>(x);
  const auto magnitude = bits & ~kSignBit;
  // Normal: the exponent loses 112, the mantissa 13 bits.
  const auto normal = (magnitude + 0xFFFU + ((magnitude >> 13U) & 1U) - 0x38000000U) >> 13U;
  // Subnormal: adding 0.5 makes the adder round at 2^-24.
  const auto subnormal = Words<V>(V(magnitude) + 0.5F) - 0x3F000000U;
  const auto finite = magnitude < 0x38800000U ? subnormal : normal;
  const auto large = magnitude > kInfinityBits ? (((magnitude >> 13U) & 0x3FFU) | 0x7E00U)
                                               : (Words<V>{} + 0x7C00U);
  return (magnitude >= 0x47800000U ? large : finite) | ((bits & kSignBit) >> 16U);
}

template <typename V>
MUSTER_INLINE V from_fp16(Words<V> half) {
  const auto magnitude = (half & 0x7FFFU) << 13U;
  const auto sign = (half & 0x8000U) << 16U;
  const auto normal = magnitude + 0x38000000U;
  const auto special = magnitude + 0x70000000U;  // infinity and NaN
  const auto subnormal = Words<V>(V(magnitude + 0x38800000U) - 0x1p-14F);
  const auto large = magnitude >= 0x0F800000U ? special : normal;
  return V((magnitude < 0x00800000U ? subnormal : large) | sign);
}

// ---- 8-bit codes ---------------------------------------------------------------------------

// table[index & 15] of each lane.
template <typename V, typename T>
MUSTER_INLINE V lookup(const T (&table)[16], Words<V> index) {
  static_assert(sizeof(T) == 4);
#if defined(__AVX512F__)
  if constexpr (sizeof(V) == 64) {
    return V(_mm512_maskz_permutexvar_ps(
        0xFFFF, __m512i(index), _mm512_loadu_ps(reinterpret_cast<const float*>(table))));
  }
#endif
#if defined(__AVX2__)
  if constexpr (sizeof(V) == 32) {
    const auto* floats = reinterpret_cast<const float*>(table);
    const __m256 low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(floats), __m256i(index));
    const __m256 high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(floats + 8), __m256i(index));
    return V(_mm256_blendv_ps(low, high, __m256(index << 28U)));
  }
#endif
  V result;
  for (unsigned i = 0; i < sizeof(V) / 4; ++i) {
    __builtin_memcpy(
        reinterpret_cast<char*>(&result) + 4 * i, &table[index[i] & 15U], sizeof(float));
  }
  return result;
}

// quant_map(kSigned)[code]
template <bool kSigned, typename V>
MUSTER_INLINE V map_value(Words<V> code) {
  constexpr const QuantTables& kTables = kQuantTables<kSigned>;
  using Signed = typename BitsOf<V>::Signed;
  if constexpr (kSigned) {
    const V distance = __builtin_convertvector(Signed(code) - 127, V);
    const V f = V(Words<V>(distance) & ~kSignBit) + 0.5F;
    const auto slot = Words<V>(f) >> 23U;
    const V magnitude = (f + lookup<V>(kTables.shift, slot)) * lookup<V>(kTables.step, slot);
    return V(Words<V>(magnitude) | (Words<V>(distance) & kSignBit));
  } else {
    const V f = __builtin_convertvector(Signed(code) + 1, V);
    const auto slot = Words<V>(f) >> 23U;
    return (f + lookup<V>(kTables.shift, slot)) * lookup<V>(kTables.step, slot);
  }
}

// The code nearest to x, -1.01 < x < 1.01; unsigned: above 0 at least 1, else 0.
template <bool kSigned, typename V>
MUSTER_INLINE Words<V> nearest_code(V x) {
  constexpr const QuantTables& kTables = kQuantTables<kSigned>;
  using Signed = typename BitsOf<V>::Signed;
  V magnitude = kSigned ? V(Words<V>(x) & ~kSignBit) : x;
  magnitude = magnitude > kQuantFloor ? magnitude : V{} + kQuantFloor;
  const auto slot = Words<V>(magnitude) >> 24U;
  const auto above = magnitude >= lookup<V>(kTables.border, slot);  // -1 where it holds
  const auto piece = Words<V>(lookup<V>(kTables.piece, slot)) - Words<V>(above);
  const V place = (magnitude + lookup<V>(kTables.offset, piece)) * lookup<V>(kTables.scale, piece);
  const V last = lookup<V>(kTables.last, piece);
  const auto code = __builtin_convertvector(place < last ? place : last, Signed);
  if constexpr (kSigned) {
    return Words<V>(x < 0.0F ? 127 - code : 127 + code);
  } else {
    return Words<V>(x > 0.0F ? code : Signed{});
  }
}

// max of the lanes as integers, in the sense of T; start from 0.
template <typename T, typename P>
MUSTER_INLINE P max_bits(P a, P b) {
  return map(
      [](auto x, auto y) MUSTER_INLINE_LAMBDA {
        typedef T Lanes __attribute__((vector_size(sizeof(x))));  // NOLINT
        return decltype(x)(Lanes(x) < Lanes(y) ? Lanes(y) : Lanes(x));
      },
      a,
      b);
}

}  // namespace muster::kernels::MUSTER_SIMD_ISA
