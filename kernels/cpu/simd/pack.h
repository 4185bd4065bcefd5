// SPDX-License-Identifier: Apache-2.0
// 64 bytes of floats or doubles as one value, on whatever vector registers this file is compiled
// for.
//
// Files that include this are compiled once per instruction set, each time in another namespace
// (MUSTER_SIMD_ISA). They must not use inline functions of the standard library: the linker keeps
// one copy of those for the whole program, and it could be the one with AVX-512 in it.
//
// A pack has the same 16 floats (8 doubles) on every machine, so sums run in the same order
// everywhere. The last few elements of an array go through the same instructions as all others
// (load_part), so the result for an element does not depend on where in the array it lies.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define MUSTER_INLINE inline __attribute__((always_inline))
#define MUSTER_INLINE_LAMBDA __attribute__((always_inline))

namespace muster::kernels::MUSTER_SIMD_ISA {

#if defined(__AVX512F__)
inline constexpr int kNativeBytes = 64;
#elif defined(__AVX2__)
inline constexpr int kNativeBytes = 32;
#else
inline constexpr int kNativeBytes = 16;
#endif

inline constexpr int kPackBytes = 64;

template <typename T, int Bytes>
struct NativeVector {
  typedef T Type __attribute__((vector_size(Bytes)));  // NOLINT: `using` cannot carry the attribute
};

// A vector register, or two packs of half the size.
template <typename T, int Bytes, bool kNative = (Bytes <= kNativeBytes)>
struct PackOf {
  using Native = typename NativeVector<T, Bytes>::Type;
  Native v;
};

template <typename T, int Bytes>
struct PackOf<T, Bytes, false> {
  using Half = PackOf<T, Bytes / 2>;
  Half lo;
  Half hi;
};

template <typename T>
using Pack = PackOf<T, kPackBytes>;

template <typename T>
inline constexpr int kLanes = kPackBytes / static_cast<int>(sizeof(T));

// f(registers...) for each register of the packs.
template <typename F, typename T, int B, typename... Rest>
MUSTER_INLINE PackOf<T, B, true> map(F f, PackOf<T, B, true> a, Rest... rest) {
  return {f(a.v, rest.v...)};
}

template <typename F, typename T, int B, typename... Rest>
MUSTER_INLINE PackOf<T, B, false> map(F f, PackOf<T, B, false> a, Rest... rest) {
  return {map(f, a.lo, rest.lo...), map(f, a.hi, rest.hi...)};
}

template <typename P>
MUSTER_INLINE P load(const void* p) {
  P result;  // NOLINT(cppcoreguidelines-pro-type-member-init): the next line writes all of it.
  __builtin_memcpy(&result, p, sizeof(P));
  return result;
}

template <typename T, int B, bool N>
MUSTER_INLINE void store(T* p, PackOf<T, B, N> a) {
  __builtin_memcpy(p, &a, sizeof(a));
}

template <typename T, int B>
MUSTER_INLINE PackOf<T, B, true> broadcast_to(PackOf<T, B, true> /*shape*/, T value) {
  return {value - typename PackOf<T, B, true>::Native{}};
}

template <typename T, int B>
MUSTER_INLINE PackOf<T, B, false> broadcast_to(PackOf<T, B, false> shape, T value) {
  return {broadcast_to(shape.lo, value), broadcast_to(shape.hi, value)};
}

template <typename P, typename T>
MUSTER_INLINE P broadcast(T value) {
  return broadcast_to(P{}, value);
}

// `count` elements from p (0 <= count <= lanes), `fill` in the others.
template <typename T>
MUSTER_INLINE Pack<T> load_part(const T* p, std::int64_t count, T fill) {
  T lanes[kLanes<T>];
  for (std::int64_t i = 0; i < kLanes<T>; ++i) {
    lanes[i] = i < count ? p[i] : fill;
  }
  return load<Pack<T>>(lanes);
}

template <typename T>
MUSTER_INLINE void store_part(T* p, Pack<T> a, std::int64_t count) {
  T lanes[kLanes<T>];
  store(lanes, a);
  for (std::int64_t i = 0; i < count; ++i) {
    p[i] = lanes[i];
  }
}

#define MUSTER_PACK_OPERATOR(op)                                                    \
  template <typename T, int B, bool N>                                              \
  MUSTER_INLINE PackOf<T, B, N> operator op(PackOf<T, B, N> a, PackOf<T, B, N> b) { \
    return map([](auto x, auto y) MUSTER_INLINE_LAMBDA { return x op y; }, a, b);   \
  }
MUSTER_PACK_OPERATOR(+)
MUSTER_PACK_OPERATOR(-)
MUSTER_PACK_OPERATOR(*)
MUSTER_PACK_OPERATOR(/)
#undef MUSTER_PACK_OPERATOR

// The larger; NaN where either is NaN.
template <typename P>
MUSTER_INLINE P max_or_nan(P a, P b) {
  return map(
      [](auto x, auto y) MUSTER_INLINE_LAMBDA {
        auto larger = x < y ? y : x;  // y NaN: x
        return y != y ? y : larger;
      },
      a,
      b);
}

template <typename P>
MUSTER_INLINE P absolute(P a) {
  return map([](auto x) MUSTER_INLINE_LAMBDA { return x < 0 ? -x : x; }, a);
}

// a where it is finite, else 0. (x - x is 0 for finite x and NaN for the others.)
template <typename P>
MUSTER_INLINE P finite_or_zero(P a) {
  return map([](auto x) MUSTER_INLINE_LAMBDA { return x - x == 0 ? x : decltype(x){}; }, a);
}

// `value` where condition(register of a, register of b) holds in a lane, else 0.
template <typename C, typename P>
MUSTER_INLINE P value_if(C condition, P a, P b, P value) {
  return map(
      [condition](auto x, auto y, auto z)
          MUSTER_INLINE_LAMBDA { return condition(x, y) ? z : decltype(z){}; },
      a,
      b,
      value);
}

MUSTER_INLINE float square_root_of(float x) {
  return __builtin_sqrtf(x);
}

MUSTER_INLINE double square_root_of(double x) {
  return __builtin_sqrt(x);
}

template <typename V>
MUSTER_INLINE V square_root_native(V x) {
#if defined(__AVX512F__)
  if constexpr (sizeof(x[0]) == sizeof(float)) {
    return V(_mm512_maskz_sqrt_ps(0xFFFF, __m512(x)));  // GCC 12 warns of the unmasked one
  }
#elif defined(__AVX2__)
  if constexpr (sizeof(x[0]) == sizeof(float)) {
    return V(_mm256_sqrt_ps(__m256(x)));
  }
#elif defined(__x86_64__)
  if constexpr (sizeof(x[0]) == sizeof(float)) {
    return V(_mm_sqrt_ps(__m128(x)));
  }
#endif
  for (unsigned i = 0; i < sizeof(V) / sizeof(x[0]); ++i) {
    x[i] = square_root_of(x[i]);
  }
  return x;
}

template <typename P>
MUSTER_INLINE P square_root(P a) {
  return map([](auto x) MUSTER_INLINE_LAMBDA { return square_root_native(x); }, a);
}
}  // namespace muster::kernels::MUSTER_SIMD_ISA
