// SPDX-License-Identifier: Apache-2.0
// Block attention for one instruction set; what each does is said in moba.h.
#pragma once

#include "kernels/moba/cpu/simd/table.h"

namespace muster::kernels::MUSTER_SIMD_ISA {

template <typename T>
void moba_gather(const MobaRows& from, std::int64_t dim, T* to, std::int64_t stride);

template <typename T>
void moba_scatter(
    const T* from, std::int64_t stride, const T* factors, const MobaTarget& to, std::int64_t dim);

template <typename T>
void moba_transpose(
    const T* from, std::int64_t stride, std::int64_t count, std::int64_t dim, T* to);

template <typename T>
void moba_scores(
    const T* rows,
    std::int64_t stride,
    std::int64_t count,
    std::int64_t dim,
    const T* queries,
    bool add,
    T* scores);

template <typename T>
void moba_attend(const MobaShape<T>& shape, const MobaKeys<T>& keys, const MobaTile<T>& tile);

template <typename T>
void moba_attend_backward(
    const MobaShape<T>& shape,
    const MobaKeys<T>& keys,
    const MobaGradientTile<T>& tile,
    T* dk,
    T* dv);

template <typename T>
void moba_add_rows(const T* from, std::int64_t stride, const MobaTarget& to, std::int64_t dim);

template <typename T>
void moba_row_dots(
    const T* a, const T* b, std::int64_t stride, std::int64_t count, std::int64_t dim, T* result);

void moba_select(
    const float* scores,
    std::int64_t count,
    std::int64_t first,
    const float* limits,
    const MobaBest& best);
void moba_score_statistics(
    const float* scores,
    std::int64_t count,
    std::int64_t first,
    const float* limits,
    const MobaScoreStatistics& result);
void moba_mean(const MobaRows& rows, std::int64_t dim, float* to);
void moba_norms(
    const MobaRows& rows, std::int64_t dim, double* largest_square, std::int64_t* nonfinite);

}  // namespace muster::kernels::MUSTER_SIMD_ISA
