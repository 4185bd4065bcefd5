// SPDX-License-Identifier: Apache-2.0
// The inner loops of mixture of block attention, compiled once per instruction set.
//
// A tile is up to kMobaTile queries, gathered from anywhere in a sequence, against consecutive
// keys. Scores are transposed: keys are rows, queries are lanes, so maximum, exp and sum of a query
// are vertical. All arithmetic of a query is the same whatever lane it has and whoever shares its
// tile; that is what makes results independent of threads, of packing and of chunked prefill.
#pragma once

#include <muster/common/dtype_enum.h>

#include <cstdint>

namespace muster::kernels {

inline constexpr std::int64_t kMobaTile = 64;     // queries of a tile
inline constexpr std::int64_t kMobaKeyStep = 64;  // keys between two updates of the running maximum
// Elements between rows of a [*, kMobaTile] tile: an odd number of cache lines, so that a column of
// lines does not fall into a few sets of the first-level cache.
inline constexpr std::int64_t kMobaTileStride = kMobaTile + 16;

// The same for rows along the head dimension, rounded up to whole packs.
template <typename T>
constexpr std::int64_t moba_row_stride(std::int64_t dim) {
  constexpr std::int64_t kLine = 64 / static_cast<std::int64_t>(sizeof(T));
  const std::int64_t lines = (dim + kLine - 1) / kLine;
  return (lines + 1 - lines % 2) * kLine;
}

// `count` rows of one head: rows[i], or first + i where `rows` is null, of `data`, `stride`
// elements apart.
template <typename Void>
struct MobaRowsOf {
  Void* data{nullptr};
  DType type{DType::kFloat32};
  std::int64_t stride{0};
  std::int64_t count{0};
  const std::int32_t* rows{nullptr};
  std::int64_t first{0};

  // Always inlined: this header is compiled for several instruction sets.
  [[nodiscard]] __attribute__((always_inline)) std::int64_t offset(std::int64_t i) const {
    return (rows == nullptr ? first + i : static_cast<std::int64_t>(rows[i])) * stride;
  }
};

using MobaRows = MobaRowsOf<const void>;
using MobaTarget = MobaRowsOf<void>;

// Keys [count, stride] and values alike, and which of them a query sees: key j <= lane + diagonal.
template <typename T>
struct MobaKeys {
  const T* k{nullptr};
  const T* v{nullptr};
  std::int64_t stride{0};
  std::int64_t count{0};
  std::int64_t diagonal{0};
};

template <typename T>
struct MobaShape {
  std::int64_t dim{0};
  std::int64_t stride{0};  // of all row tiles
  T scale{0};
  T softcap{0};
};

// Forward state of `count` queries.
template <typename T>
struct MobaTile {
  std::int64_t count{0};
  const T* queries{nullptr};  // [dim, kMobaTileStride]
  T* out{nullptr};            // [count, stride], not yet divided by sum
  T* max{nullptr};            // [kMobaTile] after softcap
  T* raw_max{nullptr};        // [kMobaTile] before it
  T* sum{nullptr};            // [kMobaTile]
  T* scores{nullptr};         // [kMobaKeyStep, kMobaTileStride] working memory
};

template <typename T>
struct MobaGradientTile {
  std::int64_t count{0};
  const T* queries{nullptr};     // [dim, kMobaTileStride]
  const T* dout{nullptr};        // [dim, kMobaTileStride]
  const T* query_rows{nullptr};  // [count, stride]
  const T* dout_rows{nullptr};   // [count, stride]
  const T* lse{nullptr};         // [kMobaTile], +inf for lanes that take no part
  const T* delta{nullptr};       // [kMobaTile] out . dout
  T* dq{nullptr};                // [count, stride], added to; still to be scaled
  T* scores{nullptr};            // twice [kMobaKeyStep, kMobaTileStride]
};

template <typename T>
struct MobaTable {
  // to[i, 0 .. whole packs) = row i, 0 beyond dim.
  void (*gather)(const MobaRows& from, std::int64_t dim, T* to, std::int64_t stride);
  // Row i of `to` = from[i] * factors[i], rounded to its type.
  void (*scatter)(
      const T* from, std::int64_t stride, const T* factors, const MobaTarget& to, std::int64_t dim);
  // to[dim, kMobaTileStride] = from[count, stride] transposed; 0 in lanes beyond `count`.
  void (*transpose)(
      const T* from, std::int64_t stride, std::int64_t count, std::int64_t dim, T* to);
  // scores[count, kMobaTileStride] = rows[count, dim] * queries, or added to them.
  void (*scores)(
      const T* rows,
      std::int64_t stride,
      std::int64_t count,
      std::int64_t dim,
      const T* queries,
      bool add,
      T* scores);
  void (*attend)(const MobaShape<T>& shape, const MobaKeys<T>& keys, const MobaTile<T>& tile);
  // dk and dv [keys, stride] are added to; dk still to be scaled.
  void (*attend_backward)(
      const MobaShape<T>& shape,
      const MobaKeys<T>& keys,
      const MobaGradientTile<T>& tile,
      T* dk,
      T* dv);
  // to[rows[i]] += from[i], whole packs of `stride`-spaced rows on both sides.
  void (*add_rows)(const T* from, std::int64_t stride, const MobaTarget& to, std::int64_t dim);
  // result[i] = a[i] . b[i] of rows that were gathered.
  void (*row_dots)(
      const T* a, const T* b, std::int64_t stride, std::int64_t count, std::int64_t dim, T* result);
};

// The best blocks of a tile of queries so far, best first: score and index in [slots,
// kMobaTileStride]. Indices are carried as floats, exact below 2^24.
struct MobaBest {
  std::int64_t slots{0};
  float* scores{nullptr};
  float* blocks{nullptr};
};

struct MobaScoreStatistics {
  float* top{nullptr};        // [kMobaTile] largest score that is a number
  float* nonfinite{nullptr};  // [kMobaTile] scores that are not finite
};

struct MobaGateTable {
  // Scores [count, kMobaTileStride] of blocks first, first + 1, ..; lane i may choose blocks below
  // limits[i]. Later blocks win ties, NaN never wins.
  void (*select)(
      const float* scores,
      std::int64_t count,
      std::int64_t first,
      const float* limits,
      const MobaBest& best);
  void (*statistics)(
      const float* scores,
      std::int64_t count,
      std::int64_t first,
      const float* limits,
      const MobaScoreStatistics& result);
  // Mean of the rows, summed in fp64, rounded once.
  void (*mean)(const MobaRows& rows, std::int64_t dim, float* to);
  // Largest sum of squares of a row that is finite, and how many rows are not.
  void (*norms)(
      const MobaRows& rows, std::int64_t dim, double* largest_square, std::int64_t* nonfinite);
};

struct MobaTables {
  MobaTable<float> floats;
  MobaTable<double> doubles;
  MobaGateTable gate;
};

[[nodiscard]] const MobaTables& moba_tables();

template <typename T>
[[nodiscard]] const MobaTable<T>& moba_table();

}  // namespace muster::kernels
