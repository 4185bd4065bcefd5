// One head of causal attention, backward, from the log-sum-exp of the forward pass.
//
// As in attention_forward.cpp keys are rows and queries are lanes:
//   P = exp(scale * k q - lse), dP = v dout, dS = P (dP - out . dout) * scale,
//   dv += P dout, dk += dS q, dq += dS k.
#include "cpu/simd/functions.h"
#include "cpu/simd/math.h"
#include "cpu/simd/tile.h"

namespace muster::kernels::MUSTER_SIMD_ISA {

namespace {

// The queries of a tile, across (lanes are queries) and along (lanes are head_dim).
template <typename T>
struct Queries {
  std::int64_t count;
  std::int64_t padded_dim;
  T* q_across;
  T* dout_across;
  T* q_along;
  T* dout_along;
  T* dq_along;
  T lse[kAttentionTile];
  T delta[kAttentionTile];  // out . dout
};

template <typename T>
struct KeyTile {
  const T* k;  // rows of the caller's stride
  const T* v;
  const T* k_along;  // rows of padded_dim
  T* dk;
  T* dv;
  std::int64_t keys;
  bool diagonal;
};

template <typename T>
void load_queries(
    const AttentionHead<T>& head,
    const AttentionGradients<T>& g,
    std::int64_t q0,
    Queries<T>& queries) {
  const std::int64_t offset = q0 * head.stride;
  queries.count = smaller(kAttentionTile, head.sequence - q0);
  transpose_in(
      head.q + offset, head.stride, queries.count, head.head_dim, queries.q_across, kAttentionTile);
  transpose_in(
      g.dout + offset,
      head.stride,
      queries.count,
      head.head_dim,
      queries.dout_across,
      kAttentionTile);
  copy_padded(
      head.q + offset,
      head.stride,
      queries.count,
      head.head_dim,
      queries.q_along,
      queries.padded_dim);
  copy_padded(
      g.dout + offset,
      head.stride,
      queries.count,
      head.head_dim,
      queries.dout_along,
      queries.padded_dim);
  clear(queries.dq_along, kAttentionTile * queries.padded_dim);
  for (std::int64_t i = 0; i < kAttentionTile; ++i) {
    const bool exists = i < queries.count;
    const std::int64_t row = offset + i * head.stride;
    queries.lse[i] = exists ? g.lse[q0 + i] : static_cast<T>(__builtin_inff());  // weight 0
    queries.delta[i] = exists ? dot(g.out + row, g.dout + row, head.head_dim) : T{0};
  }
}

// weights[key, query] and, in place of dP, dS of packs `p` to the last, keys [first, first + keys).
template <typename T>
void differentiate(
    const Queries<T>& queries,
    T scale,
    std::int64_t p,
    std::int64_t keys,
    bool triangle,
    T* weights,
    T* slopes) {
  const auto lanes = lane_numbers<T>();
  const auto factor = broadcast<Pack<T>>(scale);
  for (std::int64_t i = p * kLanes<T>; i < kAttentionTile; i += kLanes<T>) {
    const auto lse = load<Pack<T>>(queries.lse + i);
    const auto delta = load<Pack<T>>(queries.delta + i);
    const bool masked = triangle && i == p * kLanes<T>;
    for (std::int64_t j = 0; j < keys; ++j) {
      T* weight_at = weights + j * kAttentionTile + i;
      T* slope_at = slopes + j * kAttentionTile + i;
      auto weight = exponential<ExpRange::kNotPositive>(load<Pack<T>>(weight_at) * factor - lse);
      auto slope = weight * (load<Pack<T>>(slope_at) - delta) * factor;
      if (masked) {
        const auto visible = [](auto lane, auto key) MUSTER_INLINE_LAMBDA { return lane >= key; };
        const auto key = broadcast<Pack<T>>(static_cast<T>(j));
        weight = value_if(visible, lanes, key, weight);
        slope = value_if(visible, lanes, key, slope);
      }
      store(weight_at, weight);
      store(slope_at, slope);
    }
  }
}

// Keys [first, first + keys) against the queries from pack `p` on.
template <typename T>
void backward_block(
    const AttentionHead<T>& head,
    Queries<T>& queries,
    const KeyTile<T>& tile,
    std::int64_t first,
    std::int64_t keys,
    std::int64_t p,
    T* weights,
    T* slopes) {
  const std::int64_t lane = p * kLanes<T>;
  const std::int64_t packs = kTilePacks<T> - p;
  const std::int64_t source = first * head.stride;
  const std::int64_t target = first * queries.padded_dim;
  multiply(
      {tile.k + source, head.stride, 1},
      queries.q_across + lane,
      kAttentionTile,
      weights + lane,
      kAttentionTile,
      keys,
      packs,
      head.head_dim,
      false);
  multiply(
      {tile.v + source, head.stride, 1},
      queries.dout_across + lane,
      kAttentionTile,
      slopes + lane,
      kAttentionTile,
      keys,
      packs,
      head.head_dim,
      false);
  differentiate(queries, head.scale, p, keys, tile.diagonal, weights, slopes);
  const std::int64_t depth = queries.count - lane;
  const std::int64_t along = lane * queries.padded_dim;
  const std::int64_t padded_packs = queries.padded_dim / kLanes<T>;
  multiply(
      {weights + lane, kAttentionTile, 1},
      queries.dout_along + along,
      queries.padded_dim,
      tile.dv + target,
      queries.padded_dim,
      keys,
      padded_packs,
      depth,
      true);
  multiply(
      {slopes + lane, kAttentionTile, 1},
      queries.q_along + along,
      queries.padded_dim,
      tile.dk + target,
      queries.padded_dim,
      keys,
      padded_packs,
      depth,
      true);
  multiply(
      {slopes + lane, 1, kAttentionTile},
      tile.k_along + target,
      queries.padded_dim,
      queries.dq_along + along,
      queries.padded_dim,
      depth,
      padded_packs,
      keys,
      true);
}

template <typename T>
void backward_tile(
    const AttentionHead<T>& head,
    Queries<T>& queries,
    const KeyTile<T>& tile,
    T* weights,
    T* slopes) {
  if (!tile.diagonal) {
    backward_block(head, queries, tile, 0, tile.keys, 0, weights, slopes);
    return;
  }
  for (std::int64_t first = 0; first < tile.keys; first += kLanes<T>) {
    backward_block(
        head,
        queries,
        tile,
        first,
        smaller(kLanes<T>, tile.keys - first),
        first / kLanes<T>,
        weights,
        slopes);
  }
}

}  // namespace

template <typename T>
void attention_backward(const AttentionHead<T>& head, const AttentionGradients<T>& g, T* scratch) {
  const std::int64_t across = head.head_dim * kAttentionTile;
  const std::int64_t padded = padded_head_dim<T>(head.head_dim);
  Queries<T> queries{};
  queries.padded_dim = padded;
  queries.q_across = scratch;
  queries.dout_across = queries.q_across + across;
  T* weights = queries.dout_across + across;
  T* slopes = weights + kAttentionTile * kAttentionTile;
  queries.q_along = slopes + kAttentionTile * kAttentionTile;
  queries.dout_along = queries.q_along + kAttentionTile * padded;
  queries.dq_along = queries.dout_along + kAttentionTile * padded;
  T* keys = queries.dq_along + kAttentionTile * padded;
  T* dk = keys + head.sequence * padded;
  T* dv = dk + head.sequence * padded;
  copy_padded(head.k, head.stride, head.sequence, head.head_dim, keys, padded);
  clear(dk, 2 * head.sequence * padded);
  const auto unchanged = [](std::int64_t) MUSTER_INLINE_LAMBDA { return T{1}; };

  for (std::int64_t q0 = 0; q0 < head.sequence; q0 += kAttentionTile) {
    load_queries(head, g, q0, queries);
    for (std::int64_t k0 = 0; k0 <= q0; k0 += kAttentionTile) {
      const KeyTile<T> tile{
          head.k + k0 * head.stride,
          head.v + k0 * head.stride,
          keys + k0 * padded,
          dk + k0 * padded,
          dv + k0 * padded,
          smaller(kAttentionTile, head.sequence - k0),
          k0 == q0};
      backward_tile(head, queries, tile, weights, slopes);
    }
    copy_scaled(
        queries.dq_along,
        padded,
        queries.count,
        head.head_dim,
        g.dq + q0 * head.stride,
        head.stride,
        unchanged);
  }
  copy_scaled(dk, padded, head.sequence, head.head_dim, g.dk, head.stride, unchanged);
  copy_scaled(dv, padded, head.sequence, head.head_dim, g.dv, head.stride, unchanged);
}

template void attention_backward(
    const AttentionHead<float>&, const AttentionGradients<float>&, float*);
template void attention_backward(
    const AttentionHead<double>&, const AttentionGradients<double>&, double*);

}  // namespace muster::kernels::MUSTER_SIMD_ISA
