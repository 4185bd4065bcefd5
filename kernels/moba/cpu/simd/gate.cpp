// SPDX-License-Identifier: Apache-2.0
// Scores of blocks and the best of them per query.
#include "kernels/moba/cpu/simd/functions.h"
#include "kernels/moba/cpu/simd/tile.h"

namespace muster::kernels::MUSTER_SIMD_ISA {

namespace {

using Floats = Pack<float>;

// Whether a >= b in any lane.
template <int B>
MUSTER_INLINE bool any_at_least(PackOf<float, B, true> a, PackOf<float, B, true> b) {
#if defined(__AVX512F__)
  if constexpr (B == 64) {
    return _mm512_cmp_ps_mask(__m512(a.v), __m512(b.v), _CMP_GE_OQ) != 0;
  }
#endif
#if defined(__AVX2__)
  if constexpr (B == 32) {
    return _mm256_movemask_ps(_mm256_cmp_ps(__m256(a.v), __m256(b.v), _CMP_GE_OQ)) != 0;
  }
#endif
  const auto reached = a.v >= b.v;
  std::int32_t any = 0;
  for (unsigned i = 0; i < B / sizeof(float); ++i) {
    any |= reached[i];
  }
  return any != 0;
}

template <int B>
MUSTER_INLINE bool any_at_least(PackOf<float, B, false> a, PackOf<float, B, false> b) {
  return any_at_least(a.lo, b.lo) || any_at_least(a.hi, b.hi);
}

// c >= d ? a : b
MUSTER_INLINE Floats pick(Floats c, Floats d, Floats a, Floats b) {
  return map(
      [](auto u, auto v, auto x, auto y) MUSTER_INLINE_LAMBDA { return u >= v ? x : y; },
      c,
      d,
      a,
      b);
}

// c < d ? a : b
MUSTER_INLINE Floats pick_below(Floats c, Floats d, Floats a, Floats b) {
  return map(
      [](auto u, auto v, auto x, auto y) MUSTER_INLINE_LAMBDA { return u < v ? x : y; },
      c,
      d,
      a,
      b);
}

// Moves (score, block) down the sorted slots; what it beats or equals moves one further down.
MUSTER_INLINE void insert(
    Floats score, Floats block, std::int64_t slots, float* scores, float* blocks) {
  for (std::int64_t s = 0; s < slots; ++s) {
    float* best = scores + s * kMobaTileStride;
    float* index = blocks + s * kMobaTileStride;
    const auto old_score = load<Floats>(best);
    const auto old_block = load<Floats>(index);
    store(best, pick(score, old_score, score, old_score));
    store(index, pick(score, old_score, block, old_block));
    block = pick(score, old_score, old_block, block);
    score = pick(score, old_score, old_score, score);
  }
}

}  // namespace

void moba_select(
    const float* scores,
    std::int64_t count,
    std::int64_t first,
    const float* limits,
    const MobaBest& best) {
  if (best.slots == 0) {
    return;
  }
  const auto never = broadcast<Floats>(__builtin_nanf(""));
  for (std::int64_t lane = 0; lane < kMobaTile; lane += kLanes<float>) {
    const auto limit = load<Floats>(limits + lane);
    const float* worst = best.scores + (best.slots - 1) * kMobaTileStride + lane;
    for (std::int64_t b = 0; b < count; ++b) {
      const auto block = broadcast<Floats>(static_cast<float>(first + b));
      const auto score =
          pick_below(block, limit, load<Floats>(scores + b * kMobaTileStride + lane), never);
      if (any_at_least(score, load<Floats>(worst))) {
        insert(score, block, best.slots, best.scores + lane, best.blocks + lane);
      }
    }
  }
}

void moba_score_statistics(
    const float* scores,
    std::int64_t count,
    std::int64_t first,
    const float* limits,
    const MobaScoreStatistics& result) {
  const auto one = broadcast<Floats>(1.0F);
  for (std::int64_t lane = 0; lane < kMobaTile; lane += kLanes<float>) {
    const auto limit = load<Floats>(limits + lane);
    auto top = load<Floats>(result.top + lane);
    auto nonfinite = load<Floats>(result.nonfinite + lane);
    for (std::int64_t b = 0; b < count; ++b) {
      const auto block = broadcast<Floats>(static_cast<float>(first + b));
      const auto score = load<Floats>(scores + b * kMobaTileStride + lane);
      const auto larger =
          map([](auto x, auto t) MUSTER_INLINE_LAMBDA { return x > t ? x : t; }, score, top);
      top = pick_below(block, limit, larger, top);
      const auto bad =
          map([](auto x, auto y) MUSTER_INLINE_LAMBDA { return x - x == 0 ? decltype(x){} : y; },
              score,
              one);
      nonfinite = nonfinite + pick_below(block, limit, bad, Floats{});
    }
    store(result.top + lane, top);
    store(result.nonfinite + lane, nonfinite);
  }
}

template <typename T>
void moba_transpose(
    const T* from, std::int64_t stride, std::int64_t count, std::int64_t dim, T* to) {
  transpose_in(from, stride, count, dim, to, kMobaTileStride);
}

template <typename T>
void moba_scores(
    const T* rows,
    std::int64_t stride,
    std::int64_t count,
    std::int64_t dim,
    const T* queries,
    bool add,
    T* scores) {
  product<T>(
      {{rows, stride, 1}, queries, kMobaTileStride},
      {scores, kMobaTileStride, add},
      count,
      kMobaTile / kLanes<T>,
      dim);
}

#define MUSTER_INSTANTIATE(T)                                                           \
  template void moba_transpose(const T*, std::int64_t, std::int64_t, std::int64_t, T*); \
  template void moba_scores(const T*, std::int64_t, std::int64_t, std::int64_t, const T*, bool, T*);
MUSTER_INSTANTIATE(float)
MUSTER_INSTANTIATE(double)
#undef MUSTER_INSTANTIATE

template <typename T>
constexpr MobaTable<T> make_moba_table() {
  return {
      .gather = &MUSTER_SIMD_ISA::moba_gather<T>,
      .scatter = &MUSTER_SIMD_ISA::moba_scatter<T>,
      .transpose = &MUSTER_SIMD_ISA::moba_transpose<T>,
      .scores = &MUSTER_SIMD_ISA::moba_scores<T>,
      .attend = &MUSTER_SIMD_ISA::moba_attend<T>,
      .attend_backward = &MUSTER_SIMD_ISA::moba_attend_backward<T>,
      .add_rows = &MUSTER_SIMD_ISA::moba_add_rows<T>,
      .row_dots = &MUSTER_SIMD_ISA::moba_row_dots<T>};
}

extern const MobaTables kMobaTables;

const MobaTables kMobaTables{
    .floats = make_moba_table<float>(),
    .doubles = make_moba_table<double>(),
    .gate = {
        .select = &MUSTER_SIMD_ISA::moba_select,
        .statistics = &MUSTER_SIMD_ISA::moba_score_statistics,
        .mean = &MUSTER_SIMD_ISA::moba_mean,
        .norms = &MUSTER_SIMD_ISA::moba_norms}};

}  // namespace muster::kernels::MUSTER_SIMD_ISA
