// SPDX-License-Identifier: Apache-2.0
// A tile of attention backward, from the log-sum-exp of the forward pass:
//   P = exp(logits - lse), dP = v dout, dS = P (dP - delta) scale,
//   dv += P dout, dk += dS q, dq += dS k.
#include "kernels/attention/cpu/simd/functions.h"
#include "kernels/attention/cpu/simd/scores.h"

namespace muster::kernels::MUSTER_SIMD_ISA {

namespace {

// The three tiles of a panel. Left operands lie along the lanes: pairs of bf16 need half the
// floats.
template <typename Math>
struct Slopes {
  using T = typename Math::Scalar;
  static constexpr std::int64_t kLineStride = kFlashLanes<T> / Math::kPair;
  T* weights;        // P [key][lanes], left operand
  T* slopes;         // dS [key][lanes], left operand
  T* slopes_across;  // dS [units over keys][lanes], right operand; plain: the same as slopes
};

template <typename Math>
Slopes<Math> slopes_of(const FlashBackwardTile<typename Math::Scalar>& tile, std::int64_t panel) {
  using T = typename Math::Scalar;
  const std::int64_t size = flash_round_up(tile.count, kFlashRows) * kFlashLanes<T>;
  T* weights = tile.weights + panel * size;
  T* slopes = weights + tile.panels * size;
  return {weights, slopes, Math::kPair == 2 ? slopes + tile.panels * size : slopes};
}

// Logits and dP of kFlashRows keys for a panel.
template <typename T>
struct Block {
  alignas(64) T logits[kFlashRows * kFlashLanes<T>];
  alignas(64) T products[kFlashRows * kFlashLanes<T>];
};

template <typename Math>
MUSTER_INLINE void multiply_rows(
    const typename Math::Scalar* keys,
    const typename Math::Scalar* queries,
    std::int64_t units,
    typename Math::Scalar scale,
    std::int64_t first_native,
    std::int64_t natives,
    typename Math::Scalar* to) {
  using T = typename Math::Scalar;
  using V = typename Math::Vector;
  for (std::int64_t native = first_native; native < natives;
       native += static_cast<std::int64_t>(kColumns)) {
    with_columns(natives - native, [&](auto count) MUSTER_INLINE_LAMBDA {
      constexpr std::size_t kCount = decltype(count)::kValue;
      for (std::int64_t line = 0; line < kFlashRows; line += static_cast<std::int64_t>(kLines)) {
        V sums[kLines][kCount] = {};
        product_block<Math>(sums, packed_left(keys + line), queries, units, native, scale);
#pragma GCC unroll 8
        for (std::size_t r = 0; r < kLines; ++r) {
#pragma GCC unroll 3
          for (std::size_t c = 0; c < kCount; ++c) {
            store_native(
                to + (line + static_cast<std::int64_t>(r)) * kFlashLanes<T> +
                    (native + static_cast<std::int64_t>(c)) * kNativeLanes<T>,
                sums[r][c]);
          }
        }
      }
    });
  }
}

template <typename V>
struct WeightAndSlope {
  V weight;
  V slope;
};

template <typename T, typename V>
MUSTER_INLINE WeightAndSlope<V> differentiate(
    const FlashLogits<T>& logits, V logit, V product, V lse, V delta) {
  V steepness = V{} + logits.scale;
  if (logits.softcap > 0) {
    const V tangent = tanh_native(logit / logits.softcap);
    steepness = steepness * (T{1} - tangent * tangent);
    logit = tangent * logits.softcap;
  }
  const V weight = exp_not_positive(logit - lse);
  return {weight, weight * (product - delta) * steepness};
}

template <typename Math, typename V>
MUSTER_INLINE void store_slopes(
    const Slopes<Math>& to, std::int64_t key, std::int64_t lane, const WeightAndSlope<V> (&x)[2]) {
  using T = typename Math::Scalar;
#if defined(__AVX512BF16__)
  if constexpr (Math::kPair == 2) {
    for (std::int64_t i = 0; i < 2; ++i) {
      const std::int64_t place = (key + i) * Slopes<Math>::kLineStride + lane / 2;
      const __m256bh weights = _mm512_cvtneps_pbh(__m512(x[i].weight));
      const __m256bh slopes = _mm512_cvtneps_pbh(__m512(x[i].slope));
      __builtin_memcpy(to.weights + place, &weights, sizeof(weights));
      __builtin_memcpy(to.slopes + place, &slopes, sizeof(slopes));
    }
    store_native(
        to.slopes_across + key / 2 * kFlashLanes<T> + lane, pair_units(x[0].slope, x[1].slope));
    return;
  }
#endif
  for (std::int64_t i = 0; i < 2; ++i) {
    store_native(to.weights + (key + i) * kFlashLanes<T> + lane, x[i].weight);
    store_native(to.slopes + (key + i) * kFlashLanes<T> + lane, x[i].slope);
  }
}

template <typename Math, bool kMasked>
MUSTER_INLINE void differentiate_column(
    const FlashBackwardTile<typename Math::Scalar>& tile,
    const TilePlan<typename Math::Scalar>& plan,
    const Block<typename Math::Scalar>& block,
    std::int64_t panel,
    std::int64_t first_key,
    std::int64_t native,
    const Slopes<Math>& to) {
  using T = typename Math::Scalar;
  using V = typename Math::Vector;
  const std::int64_t lane = native * kNativeLanes<T>;
  const std::int64_t lanes = panel + 1 < tile.panels ? kFlashLanes<T> : tile.lanes;
  const V lse = load_native<V>(tile.lse + panel * kFlashLanes<T> + lane);
  const V delta = load_native<V>(tile.delta + panel * kFlashLanes<T> + lane);
  const V limit = load_native<V>(plan.limits + lane);
  for (std::int64_t line = 0; line < kFlashRows; line += 2) {
    WeightAndSlope<V> result[2];
    for (std::int64_t i = 0; i < 2; ++i) {
      const std::int64_t key = first_key + line + i;
      const std::int64_t place = (line + i) * kFlashLanes<T> + lane;
      V logit = load_native<V>(block.logits + place);
      if (tile.logits.bias != nullptr && key < tile.count) {
        logit = logit + bias_of(tile.logits, key, native, lanes, panel);
      }
      auto& x = result[i];
      x = differentiate(tile.logits, logit, load_native<V>(block.products + place), lse, delta);
      if constexpr (kMasked) {
        x.weight = limit > static_cast<T>(key) ? x.weight : V{};
        x.slope = limit > static_cast<T>(key) ? x.slope : V{};
      }
    }
    store_slopes<Math>(to, first_key + line, lane, result);
  }
}

// P and dS of one panel.
template <typename Math>
void find_slopes(
    const FlashBackwardTile<typename Math::Scalar>& tile,
    const TilePlan<typename Math::Scalar>& plan,
    std::int64_t panel) {
  using T = typename Math::Scalar;
  const std::int64_t units = (tile.head_dim + Math::kPair - 1) / Math::kPair;
  const T* queries = tile.queries + panel * units * kFlashLanes<T>;
  const T* douts = tile.douts + panel * units * kFlashLanes<T>;
  const Slopes<Math> to = slopes_of<Math>(tile, panel);
  std::int64_t first_native = 0;
  for (std::int64_t key = 0; key < plan.all_rows; key += kFlashRows) {
    while (plan.rows_of(first_native) <= key) {
      ++first_native;
    }
    Block<T> block;
    const T* keys = tile.keys + key * units;
    const T* values = tile.values + key * units;
    multiply_rows<Math>(
        keys, queries, units, tile.logits.scale, first_native, plan.natives, block.logits);
    multiply_rows<Math>(values, douts, units, T{1}, first_native, plan.natives, block.products);
    const bool masked = key + kFlashRows > plan.unmasked;
    for (std::int64_t native = first_native; native < plan.natives; ++native) {
      if (masked) {
        differentiate_column<Math, true>(tile, plan, block, panel, key, native, to);
      } else {
        differentiate_column<Math, false>(tile, plan, block, panel, key, native, to);
      }
    }
  }
}

template <typename Math, std::size_t Columns>
MUSTER_INLINE void add_to(
    typename Math::Scalar* to,
    std::int64_t stride,
    const typename Math::Vector (&sums)[kLines][Columns]) {
  using T = typename Math::Scalar;
  using V = typename Math::Vector;
#pragma GCC unroll 8
  for (std::size_t r = 0; r < kLines; ++r) {
#pragma GCC unroll 3
    for (std::size_t c = 0; c < Columns; ++c) {
      T* place = to + static_cast<std::int64_t>(r) * stride +
                 static_cast<std::int64_t>(c) * kNativeLanes<T>;
      store_native(place, load_native<V>(place) + sums[r][c]);
    }
  }
}

// to[key][dim] += left[key][query] rows[query][dim] for kLines keys: dv of P and dout, dk of dS
// and q.
template <typename Math, std::size_t Columns>
MUSTER_INLINE void add_keys_block(
    const FlashBackwardTile<typename Math::Scalar>& tile,
    const TilePlan<typename Math::Scalar>* plans,
    const typename Math::Scalar* left,
    const typename Math::Scalar* rows,
    std::int64_t key,
    std::int64_t dim,
    typename Math::Scalar* to) {
  using T = typename Math::Scalar;
  constexpr std::int64_t kStride = Slopes<Math>::kLineStride;
  const std::int64_t size = flash_round_up(tile.count, kFlashRows) * kFlashLanes<T>;
  typename Math::Vector sums[kLines][Columns] = {};
  for (std::int64_t p = 0; p < tile.panels; ++p) {
    std::int64_t pack = 0;
    while (pack < kFlashPacks && plans[p].rows[pack] <= key) {
      ++pack;
    }
    const std::int64_t begin = pack * kFlashPackLanes<T> / Math::kPair;
    const std::int64_t end = plans[p].natives * kNativeLanes<T> / Math::kPair;
    if (begin < end) {
      accumulate<Math, 0>(
          sums,
          Left<T>{left + p * size + key * kStride + begin, kStride, 1},
          rows + (p * kFlashLanes<T> / Math::kPair + begin) * tile.padded_dim + dim,
          tile.padded_dim,
          end - begin);
    }
  }
  add_to<Math>(to + key * tile.padded_dim + dim, tile.padded_dim, sums);
}

template <typename Math>
void add_keys(
    const FlashBackwardTile<typename Math::Scalar>& tile,
    const TilePlan<typename Math::Scalar>* plans,
    std::int64_t keys,
    const typename Math::Scalar* left,
    const typename Math::Scalar* rows,
    typename Math::Scalar* to) {
  using T = typename Math::Scalar;
  const std::int64_t natives = tile.padded_dim / kNativeLanes<T>;
  for (std::int64_t native = 0; native < natives; native += static_cast<std::int64_t>(kColumns)) {
    with_columns(natives - native, [&](auto columns) MUSTER_INLINE_LAMBDA {
      for (std::int64_t key = 0; key < keys; key += static_cast<std::int64_t>(kLines)) {
        add_keys_block<Math, decltype(columns)::kValue>(
            tile, plans, left, rows, key, native * kNativeLanes<T>, to);
      }
    });
  }
}

// dq^T[dim][lane] += k^T[dim][key] dS[key][lane] for a panel.
template <typename Math>
void add_queries(
    const FlashBackwardTile<typename Math::Scalar>& tile,
    const TilePlan<typename Math::Scalar>& plan,
    std::int64_t panel) {
  using T = typename Math::Scalar;
  const std::int64_t dims = flash_round_up(tile.head_dim, kFlashRows);
  const std::int64_t units = flash_round_up(tile.count, kFlashRows) / Math::kPair;
  const T* slopes = slopes_of<Math>(tile, panel).slopes_across;
  T* dq = tile.dq + panel * dims * kFlashLanes<T>;
  for (std::int64_t native = 0; native < plan.natives;
       native += static_cast<std::int64_t>(kColumns)) {
    with_columns(plan.natives - native, [&](auto count) MUSTER_INLINE_LAMBDA {
      constexpr std::size_t kCount = decltype(count)::kValue;
      std::int64_t ends[kCount];
      for (std::size_t c = 0; c < kCount; ++c) {
        ends[c] = plan.rows_of(native + static_cast<std::int64_t>(c)) / Math::kPair;
      }
      const std::int64_t lane = native * kNativeLanes<T>;
      for (std::int64_t dim = 0; dim < dims; dim += static_cast<std::int64_t>(kLines)) {
        const T* left = tile.keys_across + dim / kFlashRows * units * kFlashRows + dim % kFlashRows;
        typename Math::Vector sums[kLines][kCount] = {};
        accumulate_steps<Math, 0>(sums, packed_left(left), slopes + lane, kFlashLanes<T>, 0, ends);
        add_to<Math>(dq + dim * kFlashLanes<T> + lane, kFlashLanes<T>, sums);
      }
    });
  }
}

}  // namespace

template <typename Math>
void flash_backward(const FlashBackwardTile<typename Math::Scalar>& tile) {
  using T = typename Math::Scalar;
  TilePlan<T> plans[kFlashPanels];
  std::int64_t keys = 0;
  for (std::int64_t p = 0; p < tile.panels; ++p) {
    const T* limits = tile.limits == nullptr ? nullptr : tile.limits + p * kFlashLanes<T>;
    plan_tile(p + 1 < tile.panels ? kFlashLanes<T> : tile.lanes, limits, tile.count, plans[p]);
    keys = plans[p].all_rows > keys ? plans[p].all_rows : keys;
    find_slopes<Math>(tile, plans[p], p);
  }
  const Slopes<Math> slopes = slopes_of<Math>(tile, 0);
  add_keys<Math>(tile, plans, keys, slopes.weights, tile.dout_rows, tile.dv);
  add_keys<Math>(tile, plans, keys, slopes.slopes, tile.query_rows, tile.dk);
  for (std::int64_t p = 0; p < tile.panels; ++p) {
    add_queries<Math>(tile, plans[p], p);
  }
}

#if defined(__AVX512BF16__)
template void flash_backward<PairMath>(const FlashBackwardTile<float>&);
#else
template void flash_backward<PlainMath<float>>(const FlashBackwardTile<float>&);
template void flash_backward<PlainMath<double>>(const FlashBackwardTile<double>&);
#endif

}  // namespace muster::kernels::MUSTER_SIMD_ISA
