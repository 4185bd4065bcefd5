// SPDX-License-Identifier: Apache-2.0
// A tile of attention forward: scores, online softmax, weighted sum of values.
#include "kernels/attention/cpu/simd/functions.h"
#include "kernels/attention/cpu/simd/scores.h"

namespace muster::kernels::MUSTER_SIMD_ISA {

namespace {

template <typename T>
struct Softmax {
  alignas(64) T before[kFlashLanes<T>];      // maximum before this tile
  alignas(64) T correction[kFlashLanes<T>];  // for what was gathered before this tile
};

// Scores of kLines keys from `key` on, and their maxima. The state's maximum is the running one.
template <typename Math, bool kMasked, std::size_t Columns>
MUSTER_INLINE void score_block(
    const FlashForwardTile<typename Math::Scalar>& tile,
    const TilePlan<typename Math::Scalar>& plan,
    std::int64_t key,
    std::int64_t native) {
  using T = typename Math::Scalar;
  using V = typename Math::Vector;
  V sums[kLines][Columns] = {};
  const std::int64_t units = (tile.head_dim + Math::kPair - 1) / Math::kPair;
  product_block<Math>(
      sums, key_lines(tile.keys, key, units), tile.queries, units, native, tile.logits.scale);
  const std::int64_t lane = native * kNativeLanes<T>;
#pragma GCC unroll 3
  for (std::size_t c = 0; c < Columns; ++c) {
    const std::int64_t column = lane + static_cast<std::int64_t>(c) * kNativeLanes<T>;
    V largest = load_native<V>(tile.state->max + column);
    const V limit = load_native<V>(plan.limits + column);
#pragma GCC unroll 8
    for (std::size_t r = 0; r < kLines; ++r) {
      const std::int64_t line = key + static_cast<std::int64_t>(r);
      V x = sums[r][c];
      if constexpr (kMasked) {
        x = limit > static_cast<T>(line) ? x : V{} + kMinusInfinity<T>;
      }
      largest = larger_number(x, largest);
      store_native(tile.weights + line * kFlashLanes<T> + column, x);
    }
    store_native(tile.state->max + column, largest);
  }
}

// Scores of kFlashRows keys for all lanes that see one of them.
template <typename Math, bool kMasked>
MUSTER_INLINE void score_rows(
    const FlashForwardTile<typename Math::Scalar>& tile,
    const TilePlan<typename Math::Scalar>& plan,
    std::int64_t key) {
  std::int64_t native = 0;
  while (plan.rows_of(native) <= key) {
    ++native;
  }
  while (native < plan.natives) {
    const std::int64_t columns =
        smaller_of(static_cast<std::int64_t>(kColumns), plan.natives - native);
    with_columns(columns, [&](auto count) MUSTER_INLINE_LAMBDA {
      for (std::int64_t line = 0; line < kFlashRows; line += static_cast<std::int64_t>(kLines)) {
        score_block<Math, kMasked, decltype(count)::kValue>(tile, plan, key + line, native);
      }
    });
    native += columns;
  }
}

template <typename Math>
void score_tile(
    const FlashForwardTile<typename Math::Scalar>& tile,
    const TilePlan<typename Math::Scalar>& plan) {
  std::int64_t key = 0;
  for (; key + kFlashRows <= plan.unmasked; key += kFlashRows) {
    score_rows<Math, false>(tile, plan, key);
  }
  for (; key < plan.all_rows; key += kFlashRows) {
    score_rows<Math, true>(tile, plan, key);
  }
}

// Adds the bias and caps; the maxima are taken anew, before and after the cap.
template <typename T>
void adjust_scores(
    const FlashForwardTile<T>& tile, const TilePlan<T>& plan, const Softmax<T>& softmax) {
  using V = Native<T>;
  const FlashLogits<T>& logits = tile.logits;
  for (std::int64_t native = 0; native < plan.natives; ++native) {
    const std::int64_t lane = native * kNativeLanes<T>;
    V largest = load_native<V>(softmax.before + lane);
    V largest_logit = load_native<V>(tile.state->logit + lane);
    for (std::int64_t key = 0; key < plan.rows_of(native); ++key) {
      T* place = tile.weights + key * kFlashLanes<T> + lane;
      V x = load_native<V>(place);
      if (logits.bias != nullptr && key < tile.count) {
        const auto visible = load_native<V>(plan.limits + lane) > static_cast<T>(key);
        x = visible ? x + bias_of(logits, key, native, tile.lanes, 0) : x;
      }
      largest_logit = larger_number(x, largest_logit);
      if (logits.softcap > 0) {
        const V capped = tanh_native(x / logits.softcap) * logits.softcap;
        // A hidden key stays hidden: tanh would make -cap of it.
        x = x == kMinusInfinity<T> ? x : capped;
      }
      largest = larger_number(x, largest);
      store_native(place, x);
    }
    store_native(tile.state->logit + lane, largest_logit);
    store_native(tile.state->max + lane, largest);
  }
}

template <typename Math, typename V>
MUSTER_INLINE void store_weights(typename Math::Scalar* to, V first, V second) {
  using T = typename Math::Scalar;
#if defined(__AVX512BF16__)
  if constexpr (Math::kPair == 2) {
    store_native(to, pair_units(first, second));
    return;
  }
#endif
  store_native(to, first);
  store_native(to + kFlashLanes<T>, second);
}

// Scores become weights; the sum of each lane moves on.
template <typename Math>
MUSTER_INLINE void weigh_column(
    const FlashForwardTile<typename Math::Scalar>& tile,
    std::int64_t lane,
    std::int64_t rows,
    Softmax<typename Math::Scalar>& softmax) {
  using T = typename Math::Scalar;
  using V = typename Math::Vector;
  FlashState<T>& state = *tile.state;
  const V largest = load_native<V>(state.max + lane);
  // While all logits of a lane are -inf any finite shift will do; -inf itself would give NaN.
  const V shift = largest == kMinusInfinity<T> ? V{} : largest;
  const V correction = exp_not_positive(load_native<V>(softmax.before + lane) - shift);
  V total{};
  const T* from = tile.weights + lane;
  T* to = tile.weights + lane;
  for (std::int64_t key = 0; key < rows; key += 2) {
    const V first = exp_not_positive(load_native<V>(from) - shift);
    const V second = exp_not_positive(load_native<V>(from + kFlashLanes<T>) - shift);
    store_weights<Math>(to, first, second);
    total = total + first + second;
    from += 2 * kFlashLanes<T>;
    to += 2 / Math::kPair * kFlashLanes<T>;
  }
  store_native(state.sum + lane, load_native<V>(state.sum + lane) * correction + total);
  store_native(softmax.correction + lane, correction);
}

// As accumulate, over all columns, but lanes that do not see a key do not touch its values, so
// that a NaN there does not reach them.
template <typename Math, std::size_t Columns>
MUSTER_INLINE void accumulate_visible(
    typename Math::Vector (&sums)[kLines][Columns],
    const typename Math::Scalar* left,
    const typename Math::Scalar* right,
    const typename Math::Scalar* limits,
    std::int64_t units) {
  using T = typename Math::Scalar;
  using V = typename Math::Vector;
  for (std::int64_t u = 0; u < units; ++u, left += kFlashRows, right += kFlashLanes<T>) {
    for (std::size_t r = 0; r < kLines; ++r) {
      const V x = Math::unit(left + r);
      for (std::size_t c = 0; c < Columns; ++c) {
        const std::int64_t column = static_cast<std::int64_t>(c) * kNativeLanes<T>;
        const V b = load_native<V>(right + column);
        const V limit = load_native<V>(limits + column);
        const V before = sums[r][c];
        const V all = Math::add(before, x, b);
        if constexpr (Math::kPair == 2) {
          const V half = Math::add(before, V(Words<V>(x) & 0xFFFFU), b);
          const V some = limit > static_cast<T>(2 * u) ? half : before;
          sums[r][c] = limit > static_cast<T>(2 * u + 1) ? all : some;
        } else {
          sums[r][c] = limit > static_cast<T>(u) ? all : before;
        }
      }
    }
  }
}

// gathered = gathered * correction + values * weights for kLines of head_dim.
template <typename Math, std::size_t Columns>
MUSTER_INLINE void gather_block(
    const FlashForwardTile<typename Math::Scalar>& tile,
    const TilePlan<typename Math::Scalar>& plan,
    const Softmax<typename Math::Scalar>& softmax,
    std::int64_t dim,
    std::int64_t native) {
  using T = typename Math::Scalar;
  using V = typename Math::Vector;
  const std::int64_t units = flash_round_up(tile.count, kFlashRows) / Math::kPair;
  const T* left = tile.values + dim / kFlashRows * units * kFlashRows + dim % kFlashRows;
  const std::int64_t lane = native * kNativeLanes<T>;
  V sums[kLines][Columns] = {};
  if (tile.values_finite || plan.unmasked >= plan.all_rows) {
    std::int64_t ends[Columns];
    for (std::size_t c = 0; c < Columns; ++c) {
      ends[c] = plan.rows_of(native + static_cast<std::int64_t>(c)) / Math::kPair;
    }
    accumulate_steps<Math, 0>(
        sums, packed_left(left), tile.weights + lane, kFlashLanes<T>, 0, ends);
  } else {
    accumulate_visible<Math>(
        sums, left, tile.weights + lane, plan.limits + lane, plan.all_rows / Math::kPair);
  }
#pragma GCC unroll 8
  for (std::size_t r = 0; r < kLines; ++r) {
    T* line = tile.gathered + (dim + static_cast<std::int64_t>(r)) * kFlashLanes<T> + lane;
#pragma GCC unroll 3
    for (std::size_t c = 0; c < Columns; ++c) {
      const std::int64_t column = static_cast<std::int64_t>(c) * kNativeLanes<T>;
      const V correction = load_native<V>(softmax.correction + lane + column);
      store_native(line + column, load_native<V>(line + column) * correction + sums[r][c]);
    }
  }
}

template <typename Math>
void gather_tile(
    const FlashForwardTile<typename Math::Scalar>& tile,
    const TilePlan<typename Math::Scalar>& plan,
    const Softmax<typename Math::Scalar>& softmax) {
  for (std::int64_t native = 0; native < plan.natives;
       native += static_cast<std::int64_t>(kColumns)) {
    with_columns(plan.natives - native, [&](auto columns) MUSTER_INLINE_LAMBDA {
      const std::int64_t dims = flash_round_up(tile.head_dim, kFlashRows);
      for (std::int64_t dim = 0; dim < dims; dim += static_cast<std::int64_t>(kLines)) {
        gather_block<Math, decltype(columns)::kValue>(tile, plan, softmax, dim, native);
      }
    });
  }
}

}  // namespace

template <typename Math>
void flash_forward(const FlashForwardTile<typename Math::Scalar>& tile) {
  using T = typename Math::Scalar;
  using V = typename Math::Vector;
  TilePlan<T> plan;
  plan_tile(tile.lanes, tile.limits, tile.count, plan);
  if (plan.all_rows == 0) {
    return;
  }
  Softmax<T> softmax;
  for (std::int64_t native = 0; native < plan.natives; ++native) {
    const std::int64_t lane = native * kNativeLanes<T>;
    store_native(softmax.before + lane, load_native<V>(tile.state->max + lane));
  }
  score_tile<Math>(tile, plan);
  if (tile.logits.bias != nullptr || tile.logits.softcap > 0) {
    adjust_scores(tile, plan, softmax);
  } else {
    for (std::int64_t native = 0; native < plan.natives; ++native) {
      const std::int64_t lane = native * kNativeLanes<T>;
      store_native(tile.state->logit + lane, load_native<V>(tile.state->max + lane));
    }
  }
  for (std::int64_t native = 0; native < plan.natives; ++native) {
    weigh_column<Math>(tile, native * kNativeLanes<T>, plan.rows_of(native), softmax);
  }
  gather_tile<Math>(tile, plan, softmax);
}

#if defined(__AVX512BF16__)
template void flash_forward<PairMath>(const FlashForwardTile<float>&);
#else
template void flash_forward<PlainMath<float>>(const FlashForwardTile<float>&);
template void flash_forward<PlainMath<double>>(const FlashForwardTile<double>&);
#endif

}  // namespace muster::kernels::MUSTER_SIMD_ISA
