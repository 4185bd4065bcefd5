// One head of causal attention, forward, with online softmax.
//
// Scores are transposed: keys are rows, queries are lanes. Maximum, exp and sum of a query are then
// plain vertical operations on packs. In the product with v lanes are head_dim, as in memory. So
// q is all that must be transposed.
#include "cpu/simd/functions.h"
#include "cpu/simd/math.h"
#include "cpu/simd/tile.h"

namespace muster::kernels::MUSTER_SIMD_ISA {

namespace {

template <typename T>
constexpr T kMinusInfinity = -static_cast<T>(__builtin_inff());

template <typename T>
struct Tile {
  const T* k;  // key 0 of the tile, rows `stride` apart
  const T* v;  // rows `padded_dim` apart
  std::int64_t stride;
  std::int64_t padded_dim;
  std::int64_t head_dim;
  std::int64_t keys;
  bool diagonal;  // key j is visible to query i only if j <= i, both counted in the tile
};

// What is kept of the queries between tiles.
template <typename T>
struct QueryState {
  T max[static_cast<std::size_t>(kAttentionTile)];
  T sum[static_cast<std::size_t>(kAttentionTile)];
  T correction[static_cast<std::size_t>(kAttentionTile)];  // for what was gathered before this tile
};

// scores[key, query] = k . q, of visible packs only.
template <typename T>
void score(const Tile<T>& tile, const T* queries, T* scores) {
  const Strided<T> keys{tile.k, tile.stride, 1};
  if (!tile.diagonal) {
    multiply(
        keys,
        queries,
        kAttentionTile,
        scores,
        kAttentionTile,
        tile.keys,
        kTilePacks<T>,
        tile.head_dim,
        false);
    return;
  }
  for (std::int64_t p = 0; p < kTilePacks<T> && p * kLanes<T> < tile.keys; ++p) {
    const std::int64_t first = p * kLanes<T>;
    multiply(
        {tile.k + first * tile.stride, tile.stride, 1},
        queries + first,
        kAttentionTile,
        scores + first * kAttentionTile + first,
        kAttentionTile,
        smaller(kLanes<T>, tile.keys - first),
        kTilePacks<T> - p,
        tile.head_dim,
        false);
  }
}

// Scales the logits of 16 (8) queries and hides later keys. Returns the maximum of each query.
template <typename T>
MUSTER_INLINE Pack<T> scale_and_mask(
    T* column, std::int64_t keys, std::int64_t triangle, Pack<T> scale, Pack<T> largest) {
  for (std::int64_t j = 0; j < smaller(keys, triangle); ++j) {
    const auto logit = load<Pack<T>>(column + j * kAttentionTile) * scale;
    store(column + j * kAttentionTile, logit);
    largest = max_or_nan(largest, logit);
  }
  const auto lanes = lane_numbers<T>();
  for (std::int64_t j = triangle; j < keys; ++j) {
    const auto key = broadcast<Pack<T>>(static_cast<T>(j - triangle));
    const auto logit = map(
        [](auto lane, auto first, auto x)
            MUSTER_INLINE_LAMBDA { return lane < first ? decltype(x){} + kMinusInfinity<T> : x; },
        lanes,
        key,
        load<Pack<T>>(column + j * kAttentionTile) * scale);
    store(column + j * kAttentionTile, logit);
    largest = max_or_nan(largest, logit);
  }
  return largest;
}

// Turns the logits of pack `p` into weights and moves the state of its queries on.
template <typename T>
void weigh(const Tile<T>& tile, T scale, std::int64_t p, T* scores, QueryState<T>& state) {
  const std::int64_t first = p * kLanes<T>;
  T* column = scores + first;
  const std::int64_t triangle = tile.diagonal ? smaller(first, tile.keys) : tile.keys;
  const std::int64_t keys = tile.diagonal ? smaller(first + kLanes<T>, tile.keys) : tile.keys;
  const auto before = load<Pack<T>>(state.max + first);
  const auto largest = scale_and_mask(column, keys, triangle, broadcast<Pack<T>>(scale), before);
  store(state.max + first, largest);

  // While all logits of a query are -Inf any finite shift will do; -Inf itself would give NaN.
  const auto shift =
      map([](auto x) MUSTER_INLINE_LAMBDA { return x == kMinusInfinity<T> ? decltype(x){} : x; },
          largest);
  const auto correction = exponential<ExpRange::kNotPositive>(before - shift);
  auto total = load<Pack<T>>(state.sum + first) * correction;
  for (std::int64_t j = 0; j < keys; ++j) {
    T* place = column + j * kAttentionTile;
    const auto weight = exponential<ExpRange::kNotPositive>(load<Pack<T>>(place) - shift);
    store(place, weight);
    total = total + weight;
  }
  store(state.sum + first, total);
  store(state.correction + first, correction);
}

// gathered[query, d] = gathered * correction + weights * v.
template <typename T>
void gather(
    const Tile<T>& tile,
    std::int64_t queries,
    const T* weights,
    const QueryState<T>& state,
    T* gathered) {
  const Strided<T> by_query{weights, 1, kAttentionTile};
  const std::int64_t packs = tile.padded_dim / kLanes<T>;
  copy_scaled(
      gathered,
      tile.padded_dim,
      queries,
      tile.padded_dim,
      gathered,
      tile.padded_dim,
      [&state](std::int64_t i) MUSTER_INLINE_LAMBDA { return state.correction[i]; });
  if (tile.diagonal) {
    multiply_lower(by_query, tile.v, tile.padded_dim, gathered, tile.padded_dim, queries, packs);
  } else {
    multiply(
        by_query,
        tile.v,
        tile.padded_dim,
        gathered,
        tile.padded_dim,
        queries,
        packs,
        tile.keys,
        true);
  }
}

// The maximum logit of the queries that exist.
template <typename T>
T largest_logit(const QueryState<T>& state, std::int64_t queries) {
  auto largest = broadcast<Pack<T>>(kMinusInfinity<T>);
  for (std::int64_t i = 0; i < queries; i += kLanes<T>) {
    largest = max_or_nan(
        largest, load_part(state.max + i, smaller(kLanes<T>, queries - i), kMinusInfinity<T>));
  }
  return max_lane(largest);
}

}  // namespace

template <typename T>
T attention_forward(const AttentionHead<T>& head, T* out, T* lse, T* scratch) {
  const std::int64_t padded = padded_head_dim<T>(head.head_dim);
  T* queries = scratch;
  T* scores = queries + head.head_dim * kAttentionTile;
  T* gathered = scores + kAttentionTile * kAttentionTile;
  T* values = gathered + kAttentionTile * padded;
  copy_padded(head.v, head.stride, head.sequence, head.head_dim, values, padded);
  T result = kMinusInfinity<T>;
  for (std::int64_t q0 = 0; q0 < head.sequence; q0 += kAttentionTile) {
    const std::int64_t count = smaller(kAttentionTile, head.sequence - q0);
    transpose_in(
        head.q + q0 * head.stride, head.stride, count, head.head_dim, queries, kAttentionTile);
    QueryState<T> state{};
    for (T& largest : state.max) {
      largest = kMinusInfinity<T>;
    }
    clear(gathered, kAttentionTile * padded);
    for (std::int64_t k0 = 0; k0 <= q0; k0 += kAttentionTile) {
      const Tile<T> tile{
          head.k + k0 * head.stride,
          values + k0 * padded,
          head.stride,
          padded,
          head.head_dim,
          smaller(kAttentionTile, head.sequence - k0),
          k0 == q0};
      score(tile, queries, scores);
      for (std::int64_t p = 0; p * kLanes<T> < count; ++p) {
        weigh(tile, head.scale, p, scores, state);
      }
      gather(tile, count, scores, state, gathered);
    }
    copy_scaled(
        gathered,
        padded,
        count,
        head.head_dim,
        out + q0 * head.stride,
        head.stride,
        [&state](std::int64_t i) MUSTER_INLINE_LAMBDA { return T{1} / state.sum[i]; });
    for (std::int64_t i = 0; i < count; ++i) {
      lse[q0 + i] = state.max[i] + static_cast<T>(__builtin_log(static_cast<double>(state.sum[i])));
    }
    const T largest = largest_logit(state, count);
    result = largest > result || largest != largest ? largest : result;
  }
  return result;
}

template float attention_forward(const AttentionHead<float>&, float*, float*, float*);
template double attention_forward(const AttentionHead<double>&, double*, double*, double*);

}  // namespace muster::kernels::MUSTER_SIMD_ISA
