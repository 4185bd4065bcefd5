// SPDX-License-Identifier: Apache-2.0
// Floats as bits: 16-bit formats, stochastic rounding and 8-bit codes on one register of floats,
// and loads and stores of packs that change the width of their elements.
#pragma once

#include "kernels/cpu/simd/pack.h"
#include "kernels/low_precision/cpu/quant_tables.h"

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

// The low 16 or 8 bits of each lane; what lies above must be 0. (GCC's convertvector goes lane by
// lane where one or two instructions do.)
template <typename To, typename W>
MUSTER_INLINE To narrow_lanes(W words) {
#if defined(__AVX512F__)
  if constexpr (sizeof(W) == 64) {
    if constexpr (sizeof(To) == 32) {
      return To(_mm512_maskz_cvtepi32_epi16(0xFFFF, __m512i(words)));
    } else {
      return To(_mm512_maskz_cvtepi32_epi8(0xFFFF, __m512i(words)));
    }
  }
#endif
#if defined(__AVX2__)
  if constexpr (sizeof(W) == 32) {
    const __m256i halves = _mm256_packus_epi32(__m256i(words), __m256i(words));
    const __m128i joined = _mm256_castsi256_si128(_mm256_permute4x64_epi64(halves, 0x08));
    if constexpr (sizeof(To) == 16) {
      return To(joined);
    } else {
      return To(_mm_cvtsi128_si64(_mm_packus_epi16(joined, joined)));
    }
  }
#elif defined(__x86_64__)
  if constexpr (sizeof(W) == 16) {
    // There is only the signed form, which keeps all 16 bits of what is extended in sign.
    const __m128i extended = _mm_srai_epi32(_mm_slli_epi32(__m128i(words), 16), 16);
    const __m128i halves = _mm_packs_epi32(extended, extended);
    if constexpr (sizeof(To) == 8) {
      return To(_mm_cvtsi128_si64(halves));
    } else {
      return To(_mm_cvtsi128_si32(_mm_packus_epi16(halves, halves)));
    }
  }
#endif
  return __builtin_convertvector(words, To);
}

// 16 or 8 bits at p as 32-bit lanes.
template <typename W, typename T>
MUSTER_INLINE W load_lanes(const T* p) {
  typedef T Narrow __attribute__((vector_size(sizeof(W) / 4 * sizeof(T))));  // NOLINT
  Narrow raw;
  __builtin_memcpy(&raw, p, sizeof(raw));
#if defined(__AVX512F__)
  if constexpr (sizeof(W) == 64 && sizeof(T) == 1) {
    return W(_mm512_maskz_cvtepu8_epi32(0xFFFF, __m128i(raw)));
  } else if constexpr (sizeof(W) == 64) {
    return W(_mm512_maskz_cvtepu16_epi32(0xFFFF, __m256i(raw)));
  }
#endif
#if defined(__AVX2__)
  if constexpr (sizeof(W) == 32 && sizeof(T) == 1) {
    std::int64_t bytes = 0;
    __builtin_memcpy(&bytes, p, sizeof(bytes));
    return W(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(bytes)));
  } else if constexpr (sizeof(W) == 32) {
    return W(_mm256_cvtepu16_epi32(__m128i(raw)));
  }
#elif defined(__x86_64__)
  if constexpr (sizeof(T) == 1) {
    std::int32_t bytes = 0;
    __builtin_memcpy(&bytes, p, sizeof(bytes));
    const __m128i zero = _mm_setzero_si128();
    return W(_mm_unpacklo_epi16(_mm_unpacklo_epi8(_mm_cvtsi32_si128(bytes), zero), zero));
  } else {
    std::int64_t halves = 0;
    __builtin_memcpy(&halves, p, sizeof(halves));
    return W(_mm_unpacklo_epi16(_mm_cvtsi64_si128(halves), _mm_setzero_si128()));
  }
#endif
  return __builtin_convertvector(raw, W);
}

// Calls f(i, register) -> integers of one lane each for every register of the pack and stores them
// as T; `i` counts lanes.
template <typename T, typename F, int B>
MUSTER_INLINE void store_as(T* p, PackOf<float, B, true> a, F f, int first = 0) {
  typedef T Narrow __attribute__((vector_size(B / 4 * static_cast<int>(sizeof(T)))));  // NOLINT
  const auto result = narrow_lanes<Narrow>(f(first, a.v));
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
    return {f(load_lanes<Words<typename P::Native>>(p))};
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

// The larger; y where either is NaN.
template <typename V>
MUSTER_INLINE V max_native(V x, V y) {
#if defined(__AVX512F__)
  if constexpr (sizeof(V) == 64) {
    return V(_mm512_maskz_max_ps(0xFFFF, __m512(x), __m512(y)));
  }
#endif
  return x > y ? x : y;
}

// a * b + c with one rounding where the instruction set has that. Written out, and these files are
// compiled with -ffp-contract=off: what the compiler fuses on its own depends on what else is done
// with a product, so that taking statistics along would change results.
template <typename V>
MUSTER_INLINE V fused_native(V a, V b, V c) {
#if defined(__AVX512F__)
  if constexpr (sizeof(V) == 64) {
    return V(_mm512_fmadd_ps(__m512(a), __m512(b), __m512(c)));
  }
#elif defined(__AVX2__)
  if constexpr (sizeof(V) == 32) {
    return V(_mm256_fmadd_ps(__m256(a), __m256(b), __m256(c)));
  }
#endif
  return a * b + c;
}

template <typename P>
MUSTER_INLINE P fused(P a, P b, P c) {
  return map(
      [](auto x, auto y, auto z) MUSTER_INLINE_LAMBDA { return fused_native(x, y, z); }, a, b, c);
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

// f of QuantTables, and bits to OR to the value: the sign.
template <bool kSigned, typename V>
struct CodeParts {
  V f;
  Words<V> sign;
};

template <bool kSigned, typename V>
MUSTER_INLINE CodeParts<kSigned, V> code_parts(Words<V> code) {
  using Signed = typename BitsOf<V>::Signed;
  if constexpr (kSigned) {
    const V distance = __builtin_convertvector(Signed(code) - 127, V);
    return {V(Words<V>(distance) & ~kSignBit) + 0.5F, Words<V>(distance) & kSignBit};
  } else {
    return {__builtin_convertvector(Signed(code) + 1, V), Words<V>{}};
  }
}

// quant_map(kSigned)[code]
template <bool kSigned, typename V>
MUSTER_INLINE V map_value(Words<V> code) {
  constexpr const QuantTables& kTables = kQuantTables<kSigned>;
  const auto parts = code_parts<kSigned, V>(code);
  const auto slot = Words<V>(parts.f) >> 23U;
  const V value = (parts.f + lookup<V>(kTables.shift, slot)) * lookup<V>(kTables.step, slot);
  return V(Words<V>(value) | parts.sign);
}

// step and start of QuantTables times the scale of a block.
struct ScaledTables {
  alignas(kPackBytes) float step[16];
  alignas(kPackBytes) float start[16];
};

template <bool kSigned>
MUSTER_INLINE void scale_tables(ScaledTables& scaled, float scale) {
  constexpr const QuantTables& kTables = kQuantTables<kSigned>;
  const auto factor = broadcast<Pack<float>>(scale);
  store(scaled.step, load<Pack<float>>(kTables.step) * factor);
  store(scaled.start, load<Pack<float>>(kTables.start) * factor);
}

// The value of a code in a block.
template <bool kSigned, typename V>
MUSTER_INLINE V scaled_value(const ScaledTables& scaled, Words<V> code) {
  const auto parts = code_parts<kSigned, V>(code);
  const auto slot = Words<V>(parts.f) >> 23U;
  const V value =
      fused_native(parts.f, lookup<V>(scaled.step, slot), lookup<V>(scaled.start, slot));
  return V(Words<V>(value) | parts.sign);
}

// `value` + 1 where x >= bound.
template <typename V>
MUSTER_INLINE Words<V> count_reached(Words<V> value, V x, V bound) {
#if defined(__AVX512F__)
  if constexpr (sizeof(V) == 64) {
    const __mmask16 reached = _mm512_cmp_ps_mask(__m512(x), __m512(bound), _CMP_GE_OQ);
    return Words<V>(
        _mm512_mask_add_epi32(__m512i(value), reached, __m512i(value), _mm512_set1_epi32(1)));
  }
#endif
  return value - Words<V>(x >= bound);
}

// The code nearest to x * inverse, -1.01 < x * inverse < 1.01. Signed: its distance from 127;
// unsigned: at least 1 where x is above 0, else 0.
template <bool kSigned, typename V>
MUSTER_INLINE typename BitsOf<V>::Signed nearest_place(V x, V inverse) {
  constexpr const QuantTables& kTables = kQuantTables<kSigned>;
  using Signed = typename BitsOf<V>::Signed;
  const V magnitude =
      fused_native(kSigned ? V(Words<V>(x) & ~kSignBit) : x, inverse, V{} + kQuantFloor);
  const V border = lookup<V>(kTables.border, Words<V>(magnitude) >> 24U);
  const auto piece = count_reached(Words<V>(border), magnitude, border);
  const V place =
      fused_native(magnitude, lookup<V>(kTables.scale, piece), lookup<V>(kTables.offset, piece));
  const V last = lookup<V>(kTables.last, piece);
  const V bounded = place < last ? place : last;
  if constexpr (kSigned) {
    return __builtin_convertvector(V(Words<V>(bounded) | (Words<V>(x) & kSignBit)), Signed);
  } else {
    return x > 0.0F ? __builtin_convertvector(bounded, Signed) : Signed{};
  }
}

// The position of x * inverse in the map, minus 1; see PositionTables.
template <bool kSigned, typename V>
MUSTER_INLINE V position_below(V x, V inverse) {
  constexpr const PositionTables& kTables = kPositionTables<kSigned>;
  const V magnitude =
      fused_native(kSigned ? V(Words<V>(x) & ~kSignBit) : x, inverse, V{} + kQuantFloor);
  const V border = lookup<V>(kTables.border, Words<V>(magnitude) >> 24U);
  const auto piece = count_reached(Words<V>(border), magnitude, border);
  const V place =
      fused_native(magnitude, lookup<V>(kTables.scale, piece), lookup<V>(kTables.offset, piece));
  const V gap = fused_native(
      magnitude, lookup<V>(kTables.gap_scale, piece), lookup<V>(kTables.gap_offset, piece));
  return place < gap ? place : gap;
}

// One of the two codes around x * inverse, as nearest_place gives them: the upper one with the
// probability that makes the mean x, if the upper 16 bits of `random` are random. Values of the map
// stay.
template <bool kSigned, typename V>
MUSTER_INLINE typename BitsOf<V>::Signed stochastic_place(V x, V inverse, Words<V> random) {
  using Signed = typename BitsOf<V>::Signed;
  // 1 + (random + 1/2) / 2^16
  const V chance = V(((random >> 9U) & 0x007FFF80U) | 0x3F800040U);
  const V place = position_below<kSigned>(x, inverse) + chance;
  if constexpr (kSigned) {
    const auto sign = Words<V>(x) & kSignBit;
    const V last = V(Words<V>(V{} + 128.0F) - (sign >> 14U));  // 127 below 0
    const V bounded = place < last ? place : last;
    return __builtin_convertvector(V(Words<V>(bounded) | sign), Signed);
  } else {
    const V above = place < 1.0F ? V{} + 1.0F : place;
    const V bounded = above < 255.0F ? above : V{} + 255.0F;
    return x > 0.0F ? __builtin_convertvector(bounded, Signed) : Signed{};
  }
}

// Codes of four packs of places, integers in the lanes of floats.
template <bool kSigned>
MUSTER_INLINE void store_codes(std::uint8_t* p, const Pack<float> (&places)[4]) {
#if defined(__AVX512F__)
  // Packing works in quarters of a register, which then lie interleaved.
  __m512i halves[2];
  for (int i = 0; i < 2; ++i) {
    halves[i] = _mm512_packs_epi32(__m512i(places[2 * i].v), __m512i(places[2 * i + 1].v));
    if constexpr (kSigned) {
      halves[i] = _mm512_add_epi16(halves[i], _mm512_set1_epi16(127));
    }
  }
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __m512i codes =
      _mm512_maskz_permutexvar_epi32(0xFFFF, order, _mm512_packus_epi16(halves[0], halves[1]));
  __builtin_memcpy(p, &codes, sizeof(codes));
#else
  for (int i = 0; i < 4; ++i) {
    store_as(p + i * kLanes<float>, places[i], [](int, auto lanes) MUSTER_INLINE_LAMBDA {
      return Words<decltype(lanes)>(lanes) + (kSigned ? 127U : 0U);
    });
  }
#endif
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
