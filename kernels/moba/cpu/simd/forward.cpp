// SPDX-License-Identifier: Apache-2.0
// A tile of queries against consecutive keys, forward, with online softmax.
#include "kernels/cpu/simd/math.h"
#include "kernels/moba/cpu/simd/functions.h"
#include "kernels/moba/cpu/simd/tile.h"

namespace muster::kernels::MUSTER_SIMD_ISA {

namespace {

template <typename T>
constexpr T kMinusInfinity = -static_cast<T>(__builtin_inff());

// The larger; b where a is NaN, a where b is NaN.
template <typename T>
MUSTER_INLINE Pack<T> max_of_numbers(Pack<T> a, Pack<T> b) {
  return map([](auto x, auto y) MUSTER_INLINE_LAMBDA { return y > x ? y : x; }, a, b);
}

// What a maximum may be subtracted as: the one of a query that has seen nothing but -inf is 0.
template <typename T>
MUSTER_INLINE Pack<T> subtrahend(Pack<T> max) {
  return map(
      [](auto x) MUSTER_INLINE_LAMBDA { return x == kMinusInfinity<T> ? decltype(x){} : x; }, max);
}

template <typename T>
struct LaneStep {
  T* column;           // scores of these lanes
  std::int64_t seen;   // keys that any of the lanes sees
  std::int64_t whole;  // keys that all of them see
  std::int64_t diagonal;
  Pack<T> lanes;
};

// Logits into `column`, hidden ones -inf. Returns the largest of each lane, before softcap and
// after.
template <typename T>
MUSTER_INLINE void make_logits(
    const MobaShape<T>& shape, const LaneStep<T>& step, Pack<T>& raw, Pack<T>& max) {
  const auto scale = broadcast<Pack<T>>(shape.scale);
  const auto hidden = broadcast<Pack<T>>(kMinusInfinity<T>);
  for (std::int64_t j = 0; j < step.seen; ++j) {
    T* p = step.column + j * kMobaTileStride;
    auto logit = load<Pack<T>>(p) * scale;
    if (j >= step.whole) {
      logit = visible_or(j, step.diagonal, step.lanes, logit, hidden);
    }
    raw = max_of_numbers<T>(raw, logit);
    store(p, logit);
  }
  if (shape.softcap <= 0) {
    max = raw;
    return;
  }
  const auto cap = broadcast<Pack<T>>(shape.softcap);
  for (std::int64_t j = 0; j < step.seen; ++j) {
    T* p = step.column + j * kMobaTileStride;
    auto logit = soft_capped<T>(load<Pack<T>>(p), cap);
    if (j >= step.whole) {
      logit = visible_or(j, step.diagonal, step.lanes, logit, hidden);
    }
    max = max_of_numbers<T>(max, logit);
    store(p, logit);
  }
}

// Turns scores into exp(logit - max), updates maximum and sum, returns what the old sum counts.
template <typename T>
MUSTER_INLINE Pack<T> soften(
    const MobaShape<T>& shape,
    const MobaTile<T>& tile,
    const LaneStep<T>& step,
    std::int64_t first) {
  const auto old = load<Pack<T>>(tile.max + first);
  auto raw = load<Pack<T>>(tile.raw_max + first);
  auto max = old;
  make_logits(shape, step, raw, max);
  const auto base = subtrahend<T>(max);
  const auto factor = exponential<ExpRange::kNotPositive>(old - base);
  auto total = load<Pack<T>>(tile.sum + first) * factor;
  for (std::int64_t j = 0; j < step.seen; ++j) {
    T* p = step.column + j * kMobaTileStride;
    const auto weight = exponential<ExpRange::kNotPositive>(load<Pack<T>>(p) - base);
    total = total + weight;
    store(p, weight);
  }
  store(tile.max + first, max);
  store(tile.raw_max + first, raw);
  store(tile.sum + first, total);
  return factor;
}

template <typename T>
void rescale(const MobaTile<T>& tile, std::int64_t stride, std::int64_t padded, const T* factors) {
  for (std::int64_t i = 0; i < tile.count; ++i) {
    if (factors[i] == T{1}) {
      continue;
    }
    const auto factor = broadcast<Pack<T>>(factors[i]);
    T* row = tile.out + i * stride;
    for (std::int64_t c = 0; c < padded; c += kLanes<T>) {
      store(row + c, load<Pack<T>>(row + c) * factor);
    }
  }
}

template <typename T>
void attend_step(const MobaShape<T>& shape, const MobaKeys<T>& keys, const MobaTile<T>& tile) {
  score_tile(keys.k, keys.stride, keys, shape.dim, tile.queries, tile.count, tile.scores);
  T factors[static_cast<std::size_t>(kMobaTile)];
  const auto numbers = lane_numbers<T>();
  for (std::int64_t first = 0; first < tile.count; first += kLanes<T>) {
    const LaneStep<T> step{
        tile.scores + first,
        within(first + kLanes<T> + keys.diagonal, 0, keys.count),
        within(first + keys.diagonal + 1, 0, keys.count),
        keys.diagonal,
        numbers + broadcast<Pack<T>>(static_cast<T>(first))};
    store(factors + first, soften(shape, tile, step, first));
  }
  const std::int64_t packs = packs_of(shape.dim, kLanes<T>);
  rescale(tile, shape.stride, packs * kLanes<T>, factors);
  const Factors<T> product_of{{tile.scores, 1, kMobaTileStride}, keys.v, keys.stride};
  const Product<T> to{tile.out, shape.stride, true};
  if (keys.diagonal >= keys.count - 1) {
    product(product_of, to, tile.count, packs, keys.count);
  } else {
    product_below(product_of, to, tile.count, packs, keys.count, keys.diagonal);
  }
}

}  // namespace

template <typename T>
void moba_attend(const MobaShape<T>& shape, const MobaKeys<T>& keys, const MobaTile<T>& tile) {
  for (std::int64_t j = 0; j < keys.count; j += kMobaKeyStep) {
    const std::int64_t diagonal = keys.diagonal - j;
    if (tile.count - 1 + diagonal < 0) {
      return;
    }
    const MobaKeys<T> step{
        keys.k + j * keys.stride,
        keys.v + j * keys.stride,
        keys.stride,
        smaller(kMobaKeyStep, keys.count - j),
        diagonal};
    attend_step(shape, step, tile);
  }
}

template void moba_attend(const MobaShape<float>&, const MobaKeys<float>&, const MobaTile<float>&);
template void moba_attend(
    const MobaShape<double>&, const MobaKeys<double>&, const MobaTile<double>&);

}  // namespace muster::kernels::MUSTER_SIMD_ISA
