// SPDX-License-Identifier: Apache-2.0
// The one loop of all update rules. A rule says what happens to one pack; this header brings the
// packs from memory and back, in whatever type the states are stored, and adds up the statistics.
#pragma once

#include "kernels/cpu/simd/math.h"
#include "kernels/update/cpu/simd/guard.h"
#include "kernels/update/cpu/simd/table.h"

namespace muster::kernels::MUSTER_SIMD_ISA {

// The largest magnitude of both. A NaN may get lost, but not in the sums of squares.
MUSTER_INLINE Floats max_magnitude(Floats largest, Floats x) {
#if defined(__AVX512F__)
  constexpr int kAbsoluteMaximum = 0x0B;
  return {_mm512_maskz_range_ps(0xFFFF, __m512(largest.v), __m512(x.v), kAbsoluteMaximum)};
#else
  const auto magnitude = map(
      [](auto a) MUSTER_INLINE_LAMBDA { return decltype(a)(Words<decltype(a)>(a) & ~kSignBit); },
      x);
  return max_bits<std::int32_t>(largest, magnitude);
#endif
}

// `counter` + 1 where x < bound.
MUSTER_INLINE Floats count_below(Floats counter, Floats x, Floats bound) {
#if defined(__AVX512F__)
  const __mmask16 below = _mm512_cmp_ps_mask(__m512(x.v), __m512(bound.v), _CMP_LT_OQ);
  return {_mm512_mask_add_ps(__m512(counter.v), below, __m512(counter.v), _mm512_set1_ps(1.0F))};
#else
  return counter + value_if(
                       [](auto a, auto b) MUSTER_INLINE_LAMBDA { return a < b; },
                       x,
                       bound,
                       broadcast<Floats>(1.0F));
#endif
}

// 1 / x to 14 bits or better, 2^-126 <= x < 2^126.
template <typename V>
MUSTER_INLINE V reciprocal_native(V x) {
#if defined(__AVX512F__)
  if constexpr (sizeof(V) == 64) {
    return V(_mm512_maskz_rcp14_ps(0xFFFF, __m512(x)));
  }
#elif defined(__AVX2__)
  if constexpr (sizeof(V) == 32) {
    const V y = V(_mm256_rcp_ps(__m256(x)));  // 12 bits
    return y * (2.0F - x * y);
  }
#endif
  return 1.0F / x;
}

// g^2 / max(v, floor); floor is at least the smallest normal float.
MUSTER_INLINE Floats staleness_ratio(Floats g_squared, Floats v, Floats floor) {
  return map(
      [](auto squared, auto x, auto least)
          MUSTER_INLINE_LAMBDA { return squared * reciprocal_native(max_native(x, least)); },
      g_squared,
      v,
      floor);
}

// v is multiplied by this before it is squared, so that gradients from 1e-14 on have a v^2.
inline constexpr float kSecondUnit = 0x1p32F;

// Sums over a few blocks, in floats: a widening to double takes five times as long as the addition
// it serves. The square of a magnitude below 1e-19 (of v: 1e-29) counts as 0, above 1e19 (of v:
// 4e9) as infinity.
struct PartialSums {
  Floats update_squared{};
  Floats parameter_squared{};
  Floats gradient_squared{};
  Floats momentum_squared{};
  Floats momentum{};
  Floats momentum_gradient{};
  Floats second{};
  Floats second_squared{};
  Floats second_before{};
  Floats staleness{};
  Floats tiny{};
  Floats update_max{};
  Floats parameter_max{};
  Floats momentum_max{};
  Floats second_max{};

  MUSTER_INLINE void add_update(Floats update) {
    update_squared = fused(update, update, update_squared);
    update_max = max_magnitude(update_max, update);
  }

  MUSTER_INLINE void add_parameter(Floats p) {
    parameter_squared = fused(p, p, parameter_squared);
    parameter_max = max_magnitude(parameter_max, p);
  }

  MUSTER_INLINE void add_gradient(Floats g) { gradient_squared = fused(g, g, gradient_squared); }

  MUSTER_INLINE void add_momentum(Floats m, Floats g) {
    momentum_squared = fused(m, m, momentum_squared);
    momentum_gradient = fused(m, g, momentum_gradient);
    gradient_squared = fused(g, g, gradient_squared);
    momentum = momentum + m;
    momentum_max = max_magnitude(momentum_max, m);
  }

  MUSTER_INLINE void add_second(Floats before, Floats after) {
    const auto scaled = after * broadcast<Floats>(kSecondUnit);
    second_squared = fused(scaled, scaled, second_squared);
    second = second + after;
    second_before = second_before + before;
    second_max = max_magnitude(second_max, after);
  }

  // Of v, bias-corrected, and its root.
  MUSTER_INLINE void add_staleness(
      Floats g_squared, Floats v, Floats floor, Floats root, Floats bound) {
    staleness = staleness + staleness_ratio(g_squared, v, floor);
    tiny = count_below(tiny, root, bound);
  }
};

// Sums over a shard.
struct UpdateSums {
  Doubles update_squared{};
  Doubles parameter_squared{};
  Doubles gradient_squared{};
  Doubles momentum_squared{};
  Doubles momentum{};
  Doubles momentum_gradient{};
  Doubles second{};
  Doubles second_squared{};
  Doubles second_before{};
  Doubles staleness{};
  Doubles tiny{};
  Floats update_max{};
  Floats parameter_max{};
  Floats momentum_max{};
  Floats second_max{};

  MUSTER_INLINE void add(const PartialSums& part) {
    update_squared = update_squared + widen(part.update_squared);
    parameter_squared = parameter_squared + widen(part.parameter_squared);
    gradient_squared = gradient_squared + widen(part.gradient_squared);
    momentum_squared = momentum_squared + widen(part.momentum_squared);
    momentum = momentum + widen(part.momentum);
    momentum_gradient = momentum_gradient + widen(part.momentum_gradient);
    second = second + widen(part.second);
    second_squared = second_squared + widen(part.second_squared);
    second_before = second_before + widen(part.second_before);
    staleness = staleness + widen(part.staleness);
    tiny = tiny + widen(part.tiny);
    update_max = max_magnitude(update_max, part.update_max);
    parameter_max = max_magnitude(parameter_max, part.parameter_max);
    momentum_max = max_magnitude(momentum_max, part.momentum_max);
    second_max = max_magnitude(second_max, part.second_max);
  }

  // Written into `result`, whose fields are 0 before.
  void write(UpdateStatistics& result) const {
    constexpr double kSecondSquare = 1.0 / (double{kSecondUnit} * double{kSecondUnit});
    result.update_squared_sum = sum(update_squared);
    result.update_abs_max = largest(update_max, result.update_squared_sum);
    result.parameter_squared_sum = sum(parameter_squared);
    result.parameter_abs_max = largest(parameter_max, result.parameter_squared_sum);
    result.gradient_squared_sum = sum(gradient_squared);
    result.momentum_squared_sum = sum(momentum_squared);
    result.momentum_sum = sum(momentum);
    result.momentum_abs_max = largest(momentum_max, result.momentum_squared_sum);
    result.momentum_gradient_sum = sum(momentum_gradient);
    result.second_moment_sum = sum(second);
    result.second_moment_squared_sum = sum(second_squared) * kSecondSquare;
    result.second_moment_abs_max = largest(second_max, result.second_moment_sum);
    result.second_moment_before_sum = sum(second_before);
    result.staleness_sum = sum(staleness);
    result.second_moment_tiny_count = static_cast<std::int64_t>(sum(tiny));
  }

  // NaN where the sum over the same values is.
  static double largest(Floats maximum, double total) {
    const float value = float_of_bits(max_lane_bits<std::uint32_t>(maximum));
    return total != total ? total : static_cast<double>(value);
  }
};

// Blocks whose sums are kept in floats: 64 terms per lane.
inline constexpr std::int64_t kPartialSize = 4 * kBlockSize;

struct UpdateArguments {
  const UpdateTensors& tensors;
  const UpdateStep& step;
  const UpdateScalars& scalars;
  float* direction;
};

// Elements between what is worked on and what is fetched: the core does not look far enough ahead
// itself.
inline constexpr int kAhead = 512;

// Where the arrays of one block are.
struct BlockArrays {
  float* p;
  const float* g;
  float* out;
  KeptBlock kept;
};

template <bool kStatistics, typename Rule, typename First, typename Second>
MUSTER_INLINE void update_block(
    const Rule& rule,
    const BlockArrays& at,
    First& first,
    Second& second,
    std::int64_t elements,
    PartialSums& sums,
    Withheld& withheld) {
  constexpr bool kBlocks = First::kBlocks || Second::kBlocks;
  const int packs = static_cast<int>((elements + kLanes<float> - 1) / kLanes<float>);
  Floats guard{};
  for (int j = 0; j < packs; ++j) {
    const int i = j * kLanes<float>;
    __builtin_prefetch(at.g + i + kAhead);
    first.prefetch(i + kAhead);
    second.prefetch(i + kAhead);
    if constexpr (Rule::kParameter) {
      __builtin_prefetch(at.p + i + kAhead, 1);
    }
    const auto load_pack = [&]() MUSTER_INLINE_LAMBDA {
      return UpdatePack{
          load<Floats>(at.g + i),
          Rule::kParameter ? load<Floats>(at.p + i) : Floats{},
          first.load(j),
          second.load(j),
          {}};
    };
    UpdatePack x = load_pack();
    if constexpr (kBlocks) {
      first.keep(j);
      second.keep(j);
      if constexpr (Rule::kParameter) {
        store(at.kept.p + i, x.p);
      }
    }
    rule.template update<kStatistics>(x, sums);
    guard = guarded<Rule, First, Second>(kBlocks ? guard : Floats{}, x);
    if (!kBlocks && any_nan(guard)) [[unlikely]] {
      UpdatePack kept = x;  // x itself must stay in registers
      keep_lanes<Rule, First, Second>(load_pack(), kept, withheld);
      x = kept;
    }
    first.store(j, x.m);
    second.store(j, x.v);
    if constexpr (Rule::kParameter) {
      store(at.p + i, x.p);
    }
    if constexpr (Rule::kDirection) {
      store(at.out + i, x.out);
    }
  }
  if (kBlocks && any_nan(guard)) [[unlikely]] {
    keep_block<Rule::kParameter>(at.p, at.out, at.kept, first, second, packs, elements, withheld);
    return;
  }
  first.template end<kStatistics>(packs);
  second.template end<kStatistics>(packs);
}

// A padded copy of the last, incomplete block of an array.
template <typename T>
struct Tail {
  MUSTER_INLINE Tail(const T* from, std::int64_t count, T fill) {
    for (std::int64_t i = 0; i < kBlockSize; ++i) {
      values[i] = i < count && from != nullptr ? from[i] : fill;
    }
  }

  MUSTER_INLINE void write(T* to, std::int64_t count) const {
    for (std::int64_t i = 0; i < count && to != nullptr; ++i) {
      to[i] = values[i];
    }
  }

  alignas(kPackBytes) T values[kBlockSize];
};

// low_precision.cpp. Of a block that has just been written, and is in the first-level cache.
void narrow_floats(DType type, const float* from, std::uint16_t* to, std::int64_t count);

// `data` + i, or null where there is no array.
template <typename T>
MUSTER_INLINE T* offset(T* data, std::int64_t i) {
  return data == nullptr ? nullptr : data + i;
}

MUSTER_INLINE void write_motion(
    const CodeMotion& first, const CodeMotion& second, UpdateStatistics& result) {
  result.momentum_code_change_sum = first.change;
  result.momentum_code_motion_sum = first.motion;
  result.second_moment_code_change_sum = second.change;
  result.second_moment_code_motion_sum = second.motion;
}

// The last, incomplete block.
template <bool kStatistics, typename Rule, typename First, typename Second>
void update_tail(const UpdateArguments& arguments, std::int64_t base, UpdateStatistics& result) {
  const UpdateTensors& t = arguments.tensors;
  const Rule rule(arguments.scalars);
  alignas(kPackBytes) float scratch[3][kBlockSize] = {};
  First first(t.first, arguments.step, scratch[0]);
  Second second(t.second, arguments.step, scratch[1]);
  PartialSums part;
  Withheld withheld;
  const std::int64_t first_element = t.index_base + t.first_index;
  const std::int64_t rest = t.count - base;
  // Zeros stay zeros in every state and add nothing to the sums.
  Tail<float> p(offset(t.parameter, base), rest, 0);
  const Tail<float> g(t.gradient + base, rest, 0);
  Tail<float> direction(nullptr, 0, 0);
  Tail<typename First::Storage> m(offset(first.data(), base), rest, First::kZero);
  Tail<typename Second::Storage> v(offset(second.data(), base), rest, Second::kZero);
  first.begin(m.values, base / kBlockSize, first_element + base);
  second.begin(v.values, base / kBlockSize, first_element + base);
  update_block<kStatistics>(
      rule,
      {p.values, g.values, Rule::kDirection ? direction.values : nullptr, {scratch[2]}},
      first,
      second,
      rest,
      part,
      withheld);
  m.write(offset(first.data(), base), rest);
  v.write(offset(second.data(), base), rest);
  direction.write(offset(arguments.direction, base), rest);
  if constexpr (Rule::kParameter) {
    p.write(offset(t.parameter, base), rest);
    if (t.narrow_copy != nullptr) {
      narrow_floats(t.narrow_type, t.parameter + base, t.narrow_copy + base, rest);
    }
  }
  if constexpr (kStatistics) {
    UpdateSums sums;
    sums.add(part);
    sums.write(result);
    write_motion(first.motion(), second.motion(), result);
    if (Rule::kCountsTiny && arguments.scalars.tiny > 0) {
      result.second_moment_tiny_count -=
          (rest + kLanes<float> - 1) / kLanes<float> * kLanes<float> - rest;
    }
  }
  result.withheld_count = withheld.elements;
  result.lost_count = withheld.lost;
}

// Nothing that lives in registers here may be handed out by reference: stores to the arrays could
// then change it, and it would be read again for every pack.
template <bool kStatistics, typename Rule, typename First, typename Second>
void update_all(const UpdateArguments& arguments, UpdateStatistics& result) {
  const UpdateTensors t = arguments.tensors;
  float* const out = arguments.direction;
  const Rule rule(arguments.scalars);
  alignas(kPackBytes) float scratch[3][kBlockSize];
  First first(t.first, arguments.step, scratch[0]);
  Second second(t.second, arguments.step, scratch[1]);
  UpdateSums sums;
  Withheld withheld;
  const std::int64_t first_element = t.index_base + t.first_index;
  const std::int64_t whole = t.count / kBlockSize * kBlockSize;
  std::int64_t base = 0;
  while (base < whole) {
    const std::int64_t end = whole - base < kPartialSize ? whole : base + kPartialSize;
    PartialSums part;
    for (; base < end; base += kBlockSize) {
      first.begin(offset(first.data(), base), base / kBlockSize, first_element + base);
      second.begin(offset(second.data(), base), base / kBlockSize, first_element + base);
      update_block<kStatistics>(
          rule,
          {offset(t.parameter, base), t.gradient + base, offset(out, base), {scratch[2]}},
          first,
          second,
          kBlockSize,
          part,
          withheld);
      if (Rule::kParameter && t.narrow_copy != nullptr) {
        narrow_floats(t.narrow_type, t.parameter + base, t.narrow_copy + base, kBlockSize);
      }
    }
    if constexpr (kStatistics) {
      sums.add(part);
    }
  }
  if constexpr (kStatistics) {
    sums.write(result);
    write_motion(first.motion(), second.motion(), result);
  }
  result.withheld_count = withheld.elements;
  result.lost_count = withheld.lost;
  if (base < t.count) {
    UpdateStatistics rest;
    update_tail<kStatistics, Rule, First, Second>(arguments, base, rest);
    result.add(rest);
  }
}

template <typename Rule, typename First, typename Second>
MUSTER_INLINE void run_update(const UpdateArguments& arguments, UpdateStatistics& result) {
  if (arguments.step.statistics) {
    update_all<true, Rule, First, Second>(arguments, result);
  } else {
    update_all<false, Rule, First, Second>(arguments, result);
  }
}

template <typename T>
struct TypeTag {
  using Type = T;
};

// f(TypeTag) of the type that reads and writes this state.
template <bool kSigned, typename F>
MUSTER_INLINE void with_state(const StateView& view, F f) {
  if (view.type == StateType::kFloat32) {
    f(TypeTag<FloatState>{});
  } else if (view.type == StateType::kBFloat16) {
    f(TypeTag<BFloat16State>{});
  } else {
    f(TypeTag<Int8State<kSigned>>{});
  }
}

// `value` where v is not 0, else 0.
MUSTER_INLINE Floats where_nonzero(Floats v, Floats value) {
  return value_if([](auto a, auto) MUSTER_INLINE_LAMBDA { return a != 0; }, v, v, value);
}

}  // namespace muster::kernels::MUSTER_SIMD_ISA
