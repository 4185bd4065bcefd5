// AdamW and tensor statistics: one pass, sums in double.
#include "cpu/simd/functions.h"
#include "cpu/simd/math.h"

namespace muster::kernels::MUSTER_SIMD_ISA {

namespace {

using Floats = Pack<float>;
using Doubles = PackOf<double, 2 * kPackBytes>;

struct RunningSums {
  Doubles update_squared{};
  Doubles parameter_squared{};
  Doubles momentum_squared{};
  Doubles momentum{};
  Doubles second_squared{};
  Doubles second{};
  Floats parameter_max{};
  Floats momentum_max{};
  Floats second_max{};
};

struct AdamWPacks {
  Floats gradient_scale;
  Floats decay_rate;
  Floats momentum_rate;
  Floats second_rate;
  Floats inverse_correction1;
  Floats inverse_correction2;
  Floats learning_rate;
  Floats epsilon;
};

MUSTER_INLINE AdamWPacks to_packs(const AdamWFactors& f) {
  return {
      broadcast<Floats>(f.gradient_scale),
      broadcast<Floats>(f.decay_rate),
      broadcast<Floats>(f.momentum_rate),
      broadcast<Floats>(f.second_rate),
      broadcast<Floats>(f.inverse_correction1),
      broadcast<Floats>(f.inverse_correction2),
      broadcast<Floats>(f.learning_rate),
      broadcast<Floats>(f.epsilon)};
}

MUSTER_INLINE void adamw_pack(
    const AdamWPacks& f, Floats& p, Floats g, Floats& m, Floats& v, RunningSums& sums) {
  g = g * f.gradient_scale;
  // Written as moves towards the new value: 1 - beta2 and 1 - lr * decay, rounded to floats close
  // to 1, would be wrong by up to 3e-8 of 1e-3 or 1e-5, in the same direction at every step.
  m = m + f.momentum_rate * (g - m);
  v = v + f.second_rate * (g * g - v);
  const auto denominator = square_root(v * f.inverse_correction2) + f.epsilon;
  const auto step = f.learning_rate * ((m * f.inverse_correction1) / denominator);
  // Without epsilon an element that never saw a gradient (or padding) would be 0 / 0: it stays.
  const auto update = value_if(
      [](auto d, auto) MUSTER_INLINE_LAMBDA { return d != 0; }, denominator, denominator, step);
  p = p - (f.decay_rate * p + update);

  const auto wide_update = widen(update);
  const auto wide_p = widen(p);
  const auto wide_m = widen(m);
  const auto wide_v = widen(v);
  sums.update_squared = sums.update_squared + wide_update * wide_update;
  sums.parameter_squared = sums.parameter_squared + wide_p * wide_p;
  sums.momentum_squared = sums.momentum_squared + wide_m * wide_m;
  sums.momentum = sums.momentum + wide_m;
  sums.second_squared = sums.second_squared + wide_v * wide_v;
  sums.second = sums.second + wide_v;
  sums.parameter_max = max_or_nan(sums.parameter_max, absolute(p));
  sums.momentum_max = max_or_nan(sums.momentum_max, absolute(m));
  sums.second_max = max_or_nan(sums.second_max, v);
}

}  // namespace

void adamw(const AdamWTensors& t, const AdamWFactors& factors, UpdateStatistics& result) {
  const AdamWPacks packs = to_packs(factors);
  RunningSums sums;
  std::int64_t i = 0;
  for (; i + kLanes<float> <= t.count; i += kLanes<float>) {
    auto p = load<Floats>(t.parameter + i);
    auto m = load<Floats>(t.m + i);
    auto v = load<Floats>(t.v + i);
    adamw_pack(packs, p, load<Floats>(t.gradient + i), m, v, sums);
    store(t.parameter + i, p);
    store(t.m + i, m);
    store(t.v + i, v);
  }
  if (const std::int64_t rest = t.count - i; rest > 0) {
    // Zeros stay zeros in every state and add nothing to the sums.
    auto p = load_part(t.parameter + i, rest, 0.0F);
    auto m = load_part(t.m + i, rest, 0.0F);
    auto v = load_part(t.v + i, rest, 0.0F);
    adamw_pack(packs, p, load_part(t.gradient + i, rest, 0.0F), m, v, sums);
    store_part(t.parameter + i, p, rest);
    store_part(t.m + i, m, rest);
    store_part(t.v + i, v, rest);
  }
  result.update_squared_sum = sum(sums.update_squared);
  result.parameter_squared_sum = sum(sums.parameter_squared);
  result.parameter_abs_max = static_cast<double>(max_lane(sums.parameter_max));
  result.momentum_squared_sum = sum(sums.momentum_squared);
  result.momentum_sum = sum(sums.momentum);
  result.momentum_abs_max = static_cast<double>(max_lane(sums.momentum_max));
  result.second_moment_sum = sum(sums.second);
  result.second_moment_squared_sum = sum(sums.second_squared);
  result.second_moment_abs_max = static_cast<double>(max_lane(sums.second_max));
}

namespace {

// 1 in each lane where `condition` holds.
template <typename C>
MUSTER_INLINE Floats count_if(C condition, Floats x) {
  return value_if(condition, x, x, broadcast<Floats>(1.0F));
}

MUSTER_INLINE Floats count_nonfinite(Floats x) {
  return count_if([](auto a, auto) MUSTER_INLINE_LAMBDA { return (a - a) != 0; }, x);
}

// Elements between two looks at whether all were finite. Counters in floats are exact up to 2^24.
constexpr std::int64_t kBlock = 4096;

// What one block adds up to.
struct BlockSums {
  Doubles squared{};
  Doubles plain{};
  Floats largest{};
  Floats zeros{};
  Floats nonfinite{};
};

MUSTER_INLINE Floats load_at(const float* values, std::int64_t i, std::int64_t end) {
  return i + kLanes<float> <= end ? load<Floats>(values + i) : load_part(values + i, end - i, 0.0F);
}

template <bool kCheck>
MUSTER_INLINE void add_norm(BlockSums& sums, Floats x) {
  const auto wide = widen(kCheck ? finite_or_zero(x) : x);
  sums.squared = sums.squared + wide * wide;
  if constexpr (kCheck) {
    sums.nonfinite = sums.nonfinite + count_nonfinite(x);
  }
}

template <bool kCheck>
MUSTER_INLINE void add_all(BlockSums& sums, Floats x) {
  const auto finite = kCheck ? finite_or_zero(x) : x;
  sums.plain = sums.plain + widen(finite);
  sums.largest = max_or_nan(sums.largest, absolute(finite));
  sums.zeros = sums.zeros + count_if([](auto a, auto) MUSTER_INLINE_LAMBDA { return a == 0; }, x);
  add_norm<kCheck>(sums, x);
}

struct Unchecked {
  static constexpr bool kValue = false;
};

struct Checked {
  static constexpr bool kValue = true;
};

// Runs add(sums, pack, check) over a block, first believing that all is finite: squares of finite
// floats cannot overflow a double, so a sum that is not finite proves the contrary.
template <typename Add>
MUSTER_INLINE BlockSums sum_block(const float* values, std::int64_t end, Add add) {
  BlockSums sums;
  for (std::int64_t i = 0; i < end; i += kLanes<float>) {
    add(sums, load_at(values, i, end), Unchecked{});
  }
  if (const double total = sum(sums.squared); total - total == 0) {
    return sums;
  }
  sums = {};
  for (std::int64_t i = 0; i < end; i += kLanes<float>) {
    add(sums, load_at(values, i, end), Checked{});
  }
  return sums;
}

constexpr std::int64_t block_end(std::int64_t first, std::int64_t count) {
  return count - first < kBlock ? count - first : kBlock;
}

}  // namespace

void norm_and_nonfinite(const float* values, std::int64_t count, NormAndNonfinite& result) {
  Doubles squared{};
  for (std::int64_t first = 0; first < count; first += kBlock) {
    const BlockSums block = sum_block(
        values + first,
        block_end(first, count),
        [](BlockSums& sums, Floats x, auto check)
            MUSTER_INLINE_LAMBDA { add_norm<decltype(check)::kValue>(sums, x); });
    squared = squared + block.squared;
    result.nonfinite_count += static_cast<std::int64_t>(sum(block.nonfinite));
  }
  result.squared_sum = sum(squared);
}

void statistics(const float* values, std::int64_t count, TensorStatistics& result) {
  Doubles squared{};
  Doubles plain{};
  Floats largest{};
  for (std::int64_t first = 0; first < count; first += kBlock) {
    const std::int64_t end = block_end(first, count);
    const BlockSums block = sum_block(
        values + first, end, [](BlockSums& sums, Floats x, auto check) MUSTER_INLINE_LAMBDA {
          add_all<decltype(check)::kValue>(sums, x);
        });
    squared = squared + block.squared;
    plain = plain + block.plain;
    largest = max_or_nan(largest, block.largest);
    result.nonfinite_count += static_cast<std::int64_t>(sum(block.nonfinite));
    const std::int64_t padding = (kLanes<float> - end % kLanes<float>) % kLanes<float>;
    result.zero_count += static_cast<std::int64_t>(sum(block.zeros)) - padding;
  }
  result.count = count;
  result.squared_sum = sum(squared);
  result.sum = sum(plain);
  result.abs_max = static_cast<double>(max_lane(largest));
}

}  // namespace muster::kernels::MUSTER_SIMD_ISA
