// SPDX-License-Identifier: Apache-2.0
// Products of small matrices with few leftover rows at less than full speed, whole or along a
// diagonal.
#pragma once

#include "kernels/cpu/simd/tile.h"

namespace muster::kernels::MUSTER_SIMD_ISA {

template <typename T>
struct Factors {
  Strided<T> a;
  const T* b;
  std::int64_t b_stride;

  MUSTER_INLINE Factors from_row(std::int64_t row) const {
    return {{a.data + row * a.row_stride, a.row_stride, a.depth_stride}, b, b_stride};
  }

  MUSTER_INLINE Factors from_depth(std::int64_t depth) const {
    return {
        {a.data + depth * a.depth_stride, a.row_stride, a.depth_stride},
        b + depth * b_stride,
        b_stride};
  }
};

template <typename T>
struct Product {
  T* c;
  std::int64_t stride;
  bool accumulate;
};

template <std::size_t Rows, std::size_t Packs, typename T>
MUSTER_INLINE void product_columns(
    const Factors<T>& factors, const Product<T>& to, std::int64_t rows, std::int64_t depth) {
  constexpr auto kStep = static_cast<std::int64_t>(Rows);
  std::int64_t r = 0;
  for (; r + kStep <= rows; r += kStep) {
    multiply_block<T, Rows, Packs>(
        factors.from_row(r).a,
        factors.b,
        factors.b_stride,
        to.c + r * to.stride,
        to.stride,
        depth,
        to.accumulate);
  }
  if constexpr (Rows > 1) {
    if (r < rows) {
      const Product<T> rest{to.c + r * to.stride, to.stride, to.accumulate};
      product_columns<Rows / 2, Packs>(factors.from_row(r), rest, rows - r, depth);
    }
  }
}

// c[rows, packs] = or += a[rows, depth] * b[depth, packs].
template <typename T>
void product(
    const Factors<T>& factors,
    const Product<T>& to,
    std::int64_t rows,
    std::int64_t packs,
    std::int64_t depth) {
  constexpr auto kStep = static_cast<std::int64_t>(kBlockPacks);
  std::int64_t p = 0;
  for (; p < packs; p += kStep) {
    const Factors<T> part{factors.a, factors.b + p * kLanes<T>, factors.b_stride};
    const Product<T> target{to.c + p * kLanes<T>, to.stride, to.accumulate};
    if constexpr (kBlockPacks > 1) {
      if (p + kStep <= packs) {
        product_columns<kBlockRows, kBlockPacks>(part, target, rows, depth);
        continue;
      }
    }
    product_columns<kBlockRows, 1>(part, target, rows, depth);
  }
}

constexpr std::int64_t within(std::int64_t x, std::int64_t low, std::int64_t high) {
  return x < low ? low : x > high ? high : x;
}

// c[row] += sum over depth <= row + diagonal only. Nothing of b beyond is touched, so that a NaN
// there stays there.
template <typename T>
void product_below(
    const Factors<T>& factors,
    const Product<T>& to,
    std::int64_t rows,
    std::int64_t packs,
    std::int64_t depth,
    std::int64_t diagonal) {
  constexpr std::int64_t kGroup = 8;
  for (std::int64_t r = 0; r < rows; r += kGroup) {
    const std::int64_t count = smaller(kGroup, rows - r);
    const std::int64_t common = within(r + diagonal + 1, 0, depth);
    const Product<T> target{to.c + r * to.stride, to.stride, true};
    product(factors.from_row(r), target, count, packs, common);
    if (common == depth) {
      continue;
    }
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t own = within(r + i + diagonal + 1, common, depth);
      const Product<T> row{to.c + (r + i) * to.stride, to.stride, true};
      product(factors.from_row(r + i).from_depth(common), row, 1, packs, own - common);
    }
  }
}

// c[row] += sum over depth >= row - diagonal only, in ascending order.
template <typename T>
void product_above(
    const Factors<T>& factors,
    const Product<T>& to,
    std::int64_t rows,
    std::int64_t packs,
    std::int64_t depth,
    std::int64_t diagonal) {
  constexpr std::int64_t kGroup = 8;
  for (std::int64_t r = 0; r < rows; r += kGroup) {
    const std::int64_t count = smaller(kGroup, rows - r);
    const std::int64_t common = within(r + count - 1 - diagonal, 0, depth);
    for (std::int64_t i = 0; i < count && common > 0; ++i) {
      const std::int64_t own = within(r + i - diagonal, 0, common);
      const Product<T> row{to.c + (r + i) * to.stride, to.stride, true};
      product(factors.from_row(r + i).from_depth(own), row, 1, packs, common - own);
    }
    const Product<T> target{to.c + r * to.stride, to.stride, true};
    product(factors.from_row(r).from_depth(common), target, count, packs, depth - common);
  }
}

constexpr std::int64_t packs_of(std::int64_t count, std::int64_t lanes) {
  return (count + lanes - 1) / lanes;
}

// scores[key, lane] = rows[key] . queries[lane] for the keys that a lane of its pair of packs sees.
template <typename T>
void score_tile(
    const T* rows,
    std::int64_t stride,
    const MobaKeys<T>& keys,
    std::int64_t dim,
    const T* queries,
    std::int64_t lanes,
    T* scores) {
  constexpr auto kStep = static_cast<std::int64_t>(kBlockPacks);
  const std::int64_t packs = packs_of(lanes, kLanes<T>);
  for (std::int64_t p = 0; p < packs; p += kStep) {
    const std::int64_t taken = smaller(kStep, packs - p);
    const std::int64_t last = smaller(lanes, (p + taken) * kLanes<T>) - 1;
    const std::int64_t seen = within(last + keys.diagonal + 1, 0, keys.count);
    product<T>(
        {{rows, stride, 1}, queries + p * kLanes<T>, kMobaTileStride},
        {scores + p * kLanes<T>, kMobaTileStride, false},
        seen,
        taken,
        dim);
  }
}

// c tanh(x / c)
template <typename T>
MUSTER_INLINE Pack<T> soft_capped(Pack<T> x, Pack<T> cap) {
  const auto two = broadcast<Pack<T>>(T{2});
  const auto one = broadcast<Pack<T>>(T{1});
  return cap * (one - two / (exponential(two * x / cap) + one));
}

// `a` where the key is visible to the lane (key <= lane + diagonal), else `other`.
template <typename T>
MUSTER_INLINE Pack<T> visible_or(
    std::int64_t key, std::int64_t diagonal, Pack<T> lanes, Pack<T> a, Pack<T> other) {
  const auto first = broadcast<Pack<T>>(static_cast<T>(key - diagonal));
  return map(
      [](auto x, auto lane, auto from, auto fill)
          MUSTER_INLINE_LAMBDA { return lane >= from ? x : fill; },
      a,
      lanes,
      first,
      other);
}

}  // namespace muster::kernels::MUSTER_SIMD_ISA
