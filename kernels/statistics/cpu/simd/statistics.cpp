// SPDX-License-Identifier: Apache-2.0
// Tensor statistics: one pass, sums in double.
#include "kernels/cpu/simd/functions.h"
#include "kernels/cpu/simd/math.h"

namespace muster::kernels::MUSTER_SIMD_ISA {

namespace {

using Floats = Pack<float>;
using Doubles = PackOf<double, 2 * kPackBytes>;

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
