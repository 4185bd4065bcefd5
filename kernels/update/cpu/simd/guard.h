// SPDX-License-Identifier: Apache-2.0
// The guard of an update: what would get a value that is not finite keeps all of its old ones, an
// element or, with an 8-bit state, its block.
#pragma once

#include "kernels/update/cpu/simd/state.h"

namespace muster::kernels::MUSTER_SIMD_ISA {

// What one pack is made of. A rule changes what it owns.
struct UpdatePack {
  Floats g;  // gradient as stored
  Floats p;
  Floats m;
  Floats v;
  Floats out;  // direction of Muon
};

// Elements that kept their values, and those among them whose old values were not finite either.
struct Withheld {
  std::int64_t elements{0};
  std::int64_t lost{0};
};

template <typename V>
MUSTER_INLINE bool any_nan_native(V x) {
#if defined(__AVX512F__)
  if constexpr (sizeof(V) == 64) {
    return _mm512_cmp_ps_mask(__m512(x), __m512(x), _CMP_UNORD_Q) != 0;
  }
#endif
#if defined(__AVX2__)
  if constexpr (sizeof(V) == 32) {
    return _mm256_movemask_ps(_mm256_cmp_ps(__m256(x), __m256(x), _CMP_UNORD_Q)) != 0;
  }
#elif defined(__x86_64__)
  if constexpr (sizeof(V) == 16) {
    return _mm_movemask_ps(_mm_cmpunord_ps(__m128(x), __m128(x))) != 0;
  }
#endif
  bool result = false;
  for (unsigned i = 0; i < sizeof(V) / sizeof(float); ++i) {
    result = result || x[i] != x[i];
  }
  return result;
}

// True if a lane is NaN; the others are finite and so small that they can be added.
template <int B>
MUSTER_INLINE bool any_nan(PackOf<float, B, true> a) {
  return any_nan_native(a.v);
}

template <int B>
MUSTER_INLINE bool any_nan(PackOf<float, B, false> a) {
  return any_nan(a.lo + a.hi);
}

// 0 where `guard` is 0 and State can store x, else NaN.
template <typename State>
MUSTER_INLINE Floats guarded(Floats guard, Floats x) {
  if constexpr (State::kHeadroom == 0) {
    return guard;
  } else if constexpr (State::kHeadroom == 1) {
    return fused(x, Floats{}, guard);
  } else {
    return fused(x * broadcast<Floats>(State::kHeadroom), Floats{}, guard);
  }
}

template <typename Rule, typename First, typename Second>
MUSTER_INLINE Floats guarded(Floats guard, const UpdatePack& x) {
  guard = guarded<Second>(guarded<First>(guard, x.m), x.v);
  return Rule::kParameter ? guarded<FloatState>(guard, x.p) : guard;
}

MUSTER_INLINE bool is_finite(float x) {
  return x - x == 0;
}

// The lanes of x that cannot be stored become those of `before`, their direction NaN.
template <typename Rule, typename First, typename Second>
__attribute__((noinline, cold)) void keep_lanes(
    const UpdatePack& before, UpdatePack& x, Withheld& withheld) {
  float guard[kLanes<float>];
  float old_guard[kLanes<float>];
  store(guard, guarded<Rule, First, Second>(Floats{}, x));
  store(old_guard, guarded<Rule, FloatState, FloatState>(Floats{}, before));
  float lanes[4][kLanes<float>];
  const Floats* old[] = {&before.p, &before.m, &before.v};
  Floats* fresh[] = {&x.p, &x.m, &x.v, &x.out};
  for (int array = 0; array < 4; ++array) {
    float kept[kLanes<float>] = {};
    if (array < 3) {
      store(kept, *old[array]);
    }
    store(lanes[array], *fresh[array]);
    for (int i = 0; i < kLanes<float>; ++i) {
      if (guard[i] != 0) {
        lanes[array][i] = array < 3 ? kept[i] : __builtin_nanf("");
      }
    }
    *fresh[array] = load<Floats>(lanes[array]);
  }
  for (int i = 0; i < kLanes<float>; ++i) {
    withheld.elements += guard[i] != 0 ? 1 : 0;
    withheld.lost += guard[i] != 0 && old_guard[i] != 0 ? 1 : 0;
  }
}

// The parameters of a block before its update.
struct KeptBlock {
  float* p;  // kBlockSize floats of the caller
};

// Takes back what was written of a block; `end` of its states must not follow.
template <bool kParameter, typename First, typename Second>
__attribute__((noinline, cold)) void keep_block(
    float* p,
    float* out,
    const KeptBlock& kept,
    First& first,
    Second& second,
    int packs,
    std::int64_t elements,
    Withheld& withheld) {
  bool lost = first.was_lost(packs) || second.was_lost(packs);
  first.undo(packs);
  second.undo(packs);
  for (int i = 0; i < packs * kLanes<float>; ++i) {
    if constexpr (kParameter) {
      lost = lost || !is_finite(kept.p[i]);
      p[i] = kept.p[i];
    }
    if (out != nullptr) {
      out[i] = __builtin_nanf("");
    }
  }
  withheld.elements += elements;
  withheld.lost += lost ? elements : 0;
}

}  // namespace muster::kernels::MUSTER_SIMD_ISA
