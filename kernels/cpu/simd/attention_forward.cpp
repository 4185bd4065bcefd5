// One head of causal attention, forward, with online softmax.
//
// Everything is transposed: keys are rows, queries are lanes. Maximum, exp, sum and rescaling of a
// query are then plain vertical operations on packs, and keys and values are only read as single
// elements, so they need no packing and head_dim no padding.
#include "cpu/simd/functions.h"
#include "cpu/simd/math.h"
#include "cpu/simd/tile.h"

namespace muster::kernels::MUSTER_SIMD_ISA {

namespace {

template <typename T>
constexpr T kMinusInfinity = -static_cast<T>(__builtin_inff());

template <typename T>
inline constexpr std::int64_t kTilePacks = kAttentionTile / kLanes<T>;

template <typename T>
struct Tile {
  const T* k;  // key 0 of the tile, rows `stride` apart
  const T* v;
  std::int64_t stride;
  std::int64_t head_dim;
  std::int64_t keys;
  bool diagonal;  // key j is visible to query i only if j <= i, both counted in the tile
};

// What is kept of the queries between tiles.
template <typename T>
struct QueryState {
  T max[kAttentionTile];
  T sum[kAttentionTile];
};

constexpr std::int64_t smaller(std::int64_t a, std::int64_t b) {
  return a < b ? a : b;
}

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

template <typename T>
Pack<T> lane_numbers() {
  T numbers[kLanes<T>];
  for (int i = 0; i < kLanes<T>; ++i) {
    numbers[i] = static_cast<T>(i);
  }
  return load<Pack<T>>(numbers);
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

// Turns the logits of pack `p` into weights; rescales what the queries gathered so far.
template <typename T>
void weigh(
    const Tile<T>& tile, T scale, std::int64_t p, T* scores, QueryState<T>& state, T* gathered) {
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
  const auto correction = exponential(before - shift);
  auto total = load<Pack<T>>(state.sum + first) * correction;
  for (std::int64_t j = 0; j < keys; ++j) {
    const auto weight = exponential(load<Pack<T>>(column + j * kAttentionTile) - shift);
    store(column + j * kAttentionTile, weight);
    total = total + weight;
  }
  store(state.sum + first, total);
  for (std::int64_t d = 0; d < tile.head_dim; ++d) {
    T* row = gathered + d * kAttentionTile + first;
    store(row, load<Pack<T>>(row) * correction);
  }
}

// gathered[d, query] += v[key, d] * weight, where some keys are later than some of the 16 queries:
// their weight is 0, but 0 * NaN must not reach the past.
template <typename T>
void gather_triangle(const Tile<T>& tile, std::int64_t first, const T* scores, T* gathered) {
  const auto lanes = lane_numbers<T>();
  const std::int64_t keys = smaller(kLanes<T>, tile.keys - first);
  for (std::int64_t d = 0; d < tile.head_dim; ++d) {
    T* row = gathered + d * kAttentionTile + first;
    auto total = load<Pack<T>>(row);
    for (std::int64_t j = 0; j < keys; ++j) {
      const auto value = broadcast<Pack<T>>(tile.v[(first + j) * tile.stride + d]);
      const auto weight = load<Pack<T>>(scores + (first + j) * kAttentionTile + first);
      total = total + value_if(
                          [](auto lane, auto key) MUSTER_INLINE_LAMBDA { return lane >= key; },
                          lanes,
                          broadcast<Pack<T>>(static_cast<T>(j)),
                          value * weight);
    }
    store(row, total);
  }
}

template <typename T>
void gather(const Tile<T>& tile, const T* scores, T* gathered) {
  if (!tile.diagonal) {
    multiply(
        {tile.v, 1, tile.stride},
        scores,
        kAttentionTile,
        gathered,
        kAttentionTile,
        tile.head_dim,
        kTilePacks<T>,
        tile.keys,
        true);
    return;
  }
  for (std::int64_t p = 0; p < kTilePacks<T> && p * kLanes<T> < tile.keys; ++p) {
    const std::int64_t first = p * kLanes<T>;
    const std::int64_t later = first + kLanes<T>;
    gather_triangle(tile, first, scores, gathered);
    multiply(
        {tile.v + first * tile.stride, 1, tile.stride},
        scores + first * kAttentionTile + later,
        kAttentionTile,
        gathered + later,
        kAttentionTile,
        tile.head_dim,
        kTilePacks<T> - p - 1,
        smaller(kLanes<T>, tile.keys - first),
        true);
  }
}

// Normalises and writes the queries of a tile; returns their maximum logit.
template <typename T>
T finish(
    const AttentionHead<T>& head,
    std::int64_t queries,
    const QueryState<T>& state,
    T* gathered,
    T* out,
    T* lse) {
  auto largest = broadcast<Pack<T>>(kMinusInfinity<T>);
  for (std::int64_t i = 0; i < queries; i += kLanes<T>) {
    largest = max_or_nan(
        largest, load_part(state.max + i, smaller(kLanes<T>, queries - i), kMinusInfinity<T>));
    const auto inverse = broadcast<Pack<T>>(T{1}) / load<Pack<T>>(state.sum + i);
    for (std::int64_t d = 0; d < head.head_dim; ++d) {
      T* row = gathered + d * kAttentionTile + i;
      store(row, load<Pack<T>>(row) * inverse);
    }
  }
  transpose_out(gathered, kAttentionTile, queries, head.head_dim, out, head.stride);
  for (std::int64_t i = 0; i < queries; ++i) {
    lse[i] = state.max[i] + static_cast<T>(__builtin_log(static_cast<double>(state.sum[i])));
  }
  return max_lane(largest);
}

}  // namespace

template <typename T>
T attention_forward(const AttentionHead<T>& head, T* out, T* lse, T* scratch) {
  T* queries = scratch;
  T* gathered = queries + head.head_dim * kAttentionTile;
  T* scores = gathered + head.head_dim * kAttentionTile;
  T result = kMinusInfinity<T>;
  for (std::int64_t q0 = 0; q0 < head.sequence; q0 += kAttentionTile) {
    const std::int64_t count = smaller(kAttentionTile, head.sequence - q0);
    transpose_in(
        head.q + q0 * head.stride, head.stride, count, head.head_dim, queries, kAttentionTile);
    QueryState<T> state;
    for (std::int64_t i = 0; i < kAttentionTile; ++i) {
      state.max[i] = kMinusInfinity<T>;
      state.sum[i] = T{0};
    }
    for (std::int64_t i = 0; i < head.head_dim * kAttentionTile; ++i) {
      gathered[i] = T{0};
    }
    for (std::int64_t k0 = 0; k0 <= q0; k0 += kAttentionTile) {
      const Tile<T> tile{
          head.k + k0 * head.stride,
          head.v + k0 * head.stride,
          head.stride,
          head.head_dim,
          smaller(kAttentionTile, head.sequence - k0),
          k0 == q0};
      score(tile, queries, scores);
      for (std::int64_t p = 0; p * kLanes<T> < count; ++p) {
        weigh(tile, head.scale, p, scores, state, gathered);
      }
      gather(tile, scores, gathered);
    }
    const T largest = finish(head, count, state, gathered, out + q0 * head.stride, lse + q0);
    result = largest > result || largest != largest ? largest : result;
  }
  return result;
}

template float attention_forward(const AttentionHead<float>&, float*, float*, float*);
template double attention_forward(const AttentionHead<double>&, double*, double*, double*);

}  // namespace muster::kernels::MUSTER_SIMD_ISA
