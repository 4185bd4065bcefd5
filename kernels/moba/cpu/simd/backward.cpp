// SPDX-License-Identifier: Apache-2.0
// A tile of queries against consecutive keys, backward, from the global result.
#include "kernels/cpu/simd/math.h"
#include "kernels/moba/cpu/simd/functions.h"
#include "kernels/moba/cpu/simd/tile.h"

namespace muster::kernels::MUSTER_SIMD_ISA {

namespace {

template <typename T>
struct GradientLanes {
  T* weights;    // scores in, exp(logit - lse) out
  T* gradients;  // dout . v in, gradient of the scaled score out
  std::int64_t seen;
  std::int64_t whole;
  std::int64_t diagonal;
  Pack<T> lanes;
  Pack<T> lse;
  Pack<T> delta;
};

template <bool kCapped, typename T>
MUSTER_INLINE void lane_gradients(const MobaShape<T>& shape, const GradientLanes<T>& at) {
  const auto scale = broadcast<Pack<T>>(shape.scale);
  const auto one = broadcast<Pack<T>>(T{1});
  const auto cap = broadcast<Pack<T>>(shape.softcap);
  for (std::int64_t j = 0; j < at.seen; ++j) {
    T* weights = at.weights + j * kMobaTileStride;
    T* gradients = at.gradients + j * kMobaTileStride;
    auto logit = load<Pack<T>>(weights) * scale;
    auto slope = one;
    if constexpr (kCapped) {
      logit = soft_capped<T>(logit, cap);
      const auto share = logit / cap;
      slope = one - share * share;
    }
    auto weight = exponential(logit - at.lse);
    auto gradient = weight * (load<Pack<T>>(gradients) - at.delta);
    if constexpr (kCapped) {
      gradient = gradient * slope;
    }
    if (j >= at.whole) {
      weight = visible_or(j, at.diagonal, at.lanes, weight, Pack<T>{});
      gradient = visible_or(j, at.diagonal, at.lanes, gradient, Pack<T>{});
    }
    store(weights, weight);
    store(gradients, gradient);
  }
}

template <typename T>
void score_gradients(
    const MobaShape<T>& shape,
    const MobaKeys<T>& keys,
    const MobaGradientTile<T>& tile,
    T* weights,
    T* gradients) {
  score_tile(keys.k, keys.stride, keys, shape.dim, tile.queries, tile.count, weights);
  score_tile(keys.v, keys.stride, keys, shape.dim, tile.dout, tile.count, gradients);
  const auto numbers = lane_numbers<T>();
  for (std::int64_t first = 0; first < tile.count; first += kLanes<T>) {
    const GradientLanes<T> at{
        weights + first,
        gradients + first,
        within(first + kLanes<T> + keys.diagonal, 0, keys.count),
        within(first + keys.diagonal + 1, 0, keys.count),
        keys.diagonal,
        numbers + broadcast<Pack<T>>(static_cast<T>(first)),
        load<Pack<T>>(tile.lse + first),
        load<Pack<T>>(tile.delta + first)};
    if (shape.softcap > 0) {
      lane_gradients<true>(shape, at);
    } else {
      lane_gradients<false>(shape, at);
    }
  }
}

template <typename T>
void backward_step(
    const MobaShape<T>& shape,
    const MobaKeys<T>& keys,
    const MobaGradientTile<T>& tile,
    T* dk,
    T* dv) {
  T* weights = tile.scores;
  T* gradients = tile.scores + kMobaKeyStep * kMobaTileStride;
  score_gradients(shape, keys, tile, weights, gradients);
  const std::int64_t packs = packs_of(shape.dim, kLanes<T>);
  const Factors<T> for_v{{weights, kMobaTileStride, 1}, tile.dout_rows, shape.stride};
  const Factors<T> for_k{{gradients, kMobaTileStride, 1}, tile.query_rows, shape.stride};
  const Factors<T> for_q{{gradients, 1, kMobaTileStride}, keys.k, keys.stride};
  const Product<T> to_v{dv, shape.stride, true};
  const Product<T> to_k{dk, shape.stride, true};
  const Product<T> to_q{tile.dq, shape.stride, true};
  if (keys.diagonal >= keys.count - 1) {
    product(for_v, to_v, keys.count, packs, tile.count);
    product(for_k, to_k, keys.count, packs, tile.count);
    product(for_q, to_q, tile.count, packs, keys.count);
    return;
  }
  const std::int64_t seen = within(tile.count + keys.diagonal, 0, keys.count);
  product_above(for_v, to_v, seen, packs, tile.count, keys.diagonal);
  product_above(for_k, to_k, seen, packs, tile.count, keys.diagonal);
  product_below(for_q, to_q, tile.count, packs, keys.count, keys.diagonal);
}

}  // namespace

template <typename T>
void moba_attend_backward(
    const MobaShape<T>& shape,
    const MobaKeys<T>& keys,
    const MobaGradientTile<T>& tile,
    T* dk,
    T* dv) {
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
    backward_step(shape, step, tile, dk + j * shape.stride, dv + j * shape.stride);
  }
}

template void moba_attend_backward(
    const MobaShape<float>&,
    const MobaKeys<float>&,
    const MobaGradientTile<float>&,
    float*,
    float*);
template void moba_attend_backward(
    const MobaShape<double>&,
    const MobaKeys<double>&,
    const MobaGradientTile<double>&,
    double*,
    double*);

}  // namespace muster::kernels::MUSTER_SIMD_ISA
