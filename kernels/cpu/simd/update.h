// The one loop of all update rules. A rule says what happens to one pack; this header brings the
// packs from memory and back, in whatever type the states are stored, and adds up the statistics.
#pragma once

#include "cpu/simd/math.h"
#include "cpu/simd/state.h"
#include "cpu/simd/update_functions.h"

namespace muster::kernels::MUSTER_SIMD_ISA {

// What one pack is made of. A rule changes what it owns.
struct UpdatePack {
  Floats g;  // gradient as stored
  Floats p;
  Floats m;
  Floats v;
  Floats out;  // direction of Muon
};

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
  Floats update_max{};
  Floats parameter_max{};
  Floats momentum_max{};
  Floats second_max{};
  Floats tiny{};
  std::int64_t tiny_total{0};

  MUSTER_INLINE void add_update(Floats update) {
    const auto wide = widen(update);
    update_squared = update_squared + wide * wide;
    update_max = max_bits<std::uint32_t>(update_max, magnitude(update));
  }

  MUSTER_INLINE void add_parameter(Floats p) {
    const auto wide = widen(p);
    parameter_squared = parameter_squared + wide * wide;
    parameter_max = max_bits<std::uint32_t>(parameter_max, magnitude(p));
  }

  MUSTER_INLINE void add_gradient(Floats g) {
    const auto wide = widen(g);
    gradient_squared = gradient_squared + wide * wide;
  }

  MUSTER_INLINE void add_momentum(Floats m, Floats g) {
    const auto wide = widen(m);
    const auto wide_g = widen(g);
    momentum_squared = momentum_squared + wide * wide;
    momentum = momentum + wide;
    momentum_gradient = momentum_gradient + wide * wide_g;
    gradient_squared = gradient_squared + wide_g * wide_g;
    momentum_max = max_bits<std::uint32_t>(momentum_max, magnitude(m));
  }

  MUSTER_INLINE void add_second(Floats before, Floats after) {
    const auto wide = widen(after);
    second = second + wide;
    second_squared = second_squared + wide * wide;
    second_before = second_before + widen(before);
    second_max = max_bits<std::uint32_t>(second_max, after);
  }

  // 1 in the lanes of `flags` that count.
  MUSTER_INLINE void add_staleness(Floats ratio, Floats flags) {
    staleness = staleness + widen(ratio);
    tiny = tiny + flags;
  }

  // Counters in floats are exact up to 2^24.
  MUSTER_INLINE void flush_counters() {
    tiny_total += static_cast<std::int64_t>(sum(tiny));
    tiny = Floats{};
  }

  MUSTER_INLINE static Floats magnitude(Floats x) {
    return map(
        [](auto a) MUSTER_INLINE_LAMBDA { return decltype(a)(Words<decltype(a)>(a) & ~kSignBit); },
        x);
  }

  // Written into `result`, whose fields are 0 before.
  void write(UpdateStatistics& result) const {
    result.update_squared_sum = sum(update_squared);
    result.update_abs_max = float_of_bits(max_lane_bits<std::uint32_t>(update_max));
    result.parameter_squared_sum = sum(parameter_squared);
    result.parameter_abs_max = float_of_bits(max_lane_bits<std::uint32_t>(parameter_max));
    result.gradient_squared_sum = sum(gradient_squared);
    result.momentum_squared_sum = sum(momentum_squared);
    result.momentum_sum = sum(momentum);
    result.momentum_abs_max = float_of_bits(max_lane_bits<std::uint32_t>(momentum_max));
    result.momentum_gradient_sum = sum(momentum_gradient);
    result.second_moment_sum = sum(second);
    result.second_moment_squared_sum = sum(second_squared);
    result.second_moment_abs_max = float_of_bits(max_lane_bits<std::uint32_t>(second_max));
    result.second_moment_before_sum = sum(second_before);
    result.staleness_sum = sum(staleness);
    result.second_moment_tiny_count = tiny_total;
  }
};

struct UpdateArguments {
  const UpdateTensors& tensors;
  const UpdateStep& step;
  const UpdateScalars& scalars;
  float* direction;
};

// Where the arrays of one block are.
struct BlockArrays {
  float* p;
  const float* g;
  float* out;
};

template <bool kStatistics, typename Rule, typename First, typename Second>
MUSTER_INLINE void update_block(
    const Rule& rule,
    const BlockArrays& at,
    First& first,
    Second& second,
    int packs,
    UpdateSums& sums) {
  for (int j = 0; j < packs; ++j) {
    const int i = j * kLanes<float>;
    UpdatePack x{load<Floats>(at.g + i), {}, first.load(j), second.load(j), {}};
    if constexpr (Rule::kParameter) {
      x.p = load<Floats>(at.p + i);
    }
    rule.template update<kStatistics>(x, sums);
    first.store(j, x.m);
    second.store(j, x.v);
    if constexpr (Rule::kParameter) {
      store(at.p + i, x.p);
    }
    if constexpr (Rule::kDirection) {
      store(at.out + i, x.out);
    }
  }
  first.end(packs);
  second.end(packs);
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
void narrow_floats(FloatType type, const float* from, std::uint16_t* to, std::int64_t count);

// `data` + i, or null where there is no array.
template <typename T>
MUSTER_INLINE T* offset(T* data, std::int64_t i) {
  return data == nullptr ? nullptr : data + i;
}

// The last, incomplete block.
template <bool kStatistics, typename Rule, typename First, typename Second>
void update_tail(const UpdateArguments& arguments, std::int64_t base, UpdateStatistics& result) {
  const UpdateTensors& t = arguments.tensors;
  const Rule rule(arguments.scalars);
  First first(t.first, arguments.step);
  Second second(t.second, arguments.step);
  UpdateSums sums;
  const std::int64_t rest = t.count - base;
  const int packs = static_cast<int>((rest + kLanes<float> - 1) / kLanes<float>);
  // Zeros stay zeros in every state and add nothing to the sums.
  Tail<float> p(offset(t.parameter, base), rest, 0);
  const Tail<float> g(t.gradient + base, rest, 0);
  Tail<float> direction(nullptr, 0, 0);
  Tail<typename First::Storage> m(offset(first.data(), base), rest, First::kZero);
  Tail<typename Second::Storage> v(offset(second.data(), base), rest, Second::kZero);
  first.begin(m.values, base / kBlockSize, t.first_index + base);
  second.begin(v.values, base / kBlockSize, t.first_index + base);
  update_block<kStatistics>(
      rule, {p.values, g.values, direction.values}, first, second, packs, sums);
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
    sums.flush_counters();
    if (Rule::kCountsTiny && arguments.scalars.tiny > 0) {
      sums.tiny_total -= packs * kLanes<float> - rest;
    }
    sums.write(result);
  }
}

// Nothing that lives in registers here may be handed out by reference: stores to the arrays could
// then change it, and it would be read again for every pack.
template <bool kStatistics, typename Rule, typename First, typename Second>
void update_all(const UpdateArguments& arguments, UpdateStatistics& result) {
  const UpdateTensors t = arguments.tensors;
  float* const out = arguments.direction;
  const Rule rule(arguments.scalars);
  First first(t.first, arguments.step);
  Second second(t.second, arguments.step);
  UpdateSums sums;
  std::int64_t base = 0;
  for (; base + kBlockSize <= t.count; base += kBlockSize) {
    first.begin(offset(first.data(), base), base / kBlockSize, t.first_index + base);
    second.begin(offset(second.data(), base), base / kBlockSize, t.first_index + base);
    update_block<kStatistics>(
        rule,
        {offset(t.parameter, base), t.gradient + base, offset(out, base)},
        first,
        second,
        kBlockPacks,
        sums);
    if (Rule::kParameter && t.narrow_copy != nullptr) {
      narrow_floats(t.narrow_type, t.parameter + base, t.narrow_copy + base, kBlockSize);
    }
    if (kStatistics && (base / kBlockSize & 0xFFF) == 0) {
      sums.flush_counters();
    }
  }
  if constexpr (kStatistics) {
    sums.flush_counters();
    sums.write(result);
  }
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

// 1 where x < bound.
MUSTER_INLINE Floats count_below(Floats x, Floats bound) {
  return value_if(
      [](auto a, auto b) MUSTER_INLINE_LAMBDA { return a < b; }, x, bound, broadcast<Floats>(1.0F));
}

// g^2 / max(v, epsilon^2), 0 where both are 0.
MUSTER_INLINE Floats staleness(Floats g, Floats v, Floats epsilon_squared) {
  const auto bounded = max_or_nan(v, epsilon_squared);
  return where_nonzero(bounded, g * g / bounded);
}

}  // namespace muster::kernels::MUSTER_SIMD_ISA
