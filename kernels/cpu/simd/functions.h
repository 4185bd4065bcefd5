// SPDX-License-Identifier: Apache-2.0
// Declares what the files of this folder define for the instruction set they are compiled for.
#pragma once

#include "kernels/cpu/simd/table.h"

namespace muster::kernels::MUSTER_SIMD_ISA {

template <typename T>
void rms_norm_forward(
    const T* x,
    const T* weight,
    T* y,
    T* inverse_rms,
    std::int64_t tokens,
    std::int64_t dim,
    double epsilon);
template <typename T>
void rms_norm_backward(
    const T* x,
    const T* weight,
    const T* inverse_rms,
    const T* dy,
    T* dx,
    T* dweight,
    std::int64_t tokens,
    std::int64_t dim);
template <typename T>
void rope(
    T* x,
    std::int64_t tokens,
    std::int64_t heads,
    std::int64_t head_dim,
    std::int64_t sequence,
    const T* angles,
    T sign);
template <typename T>
void swiglu_forward(const T* gate, const T* up, T* y, std::int64_t count);
template <typename T>
void swiglu_backward(const T* gate, const T* up, const T* dy, T* dgate, T* dup, std::int64_t count);
template <typename T>
double cross_entropy(
    const T* logits,
    const std::int32_t* targets,
    T* dlogits,
    std::int64_t tokens,
    std::int64_t vocab);
template <typename T>
void softmax(const T* logits, T* scores, std::int64_t rows, std::int64_t columns);
template <typename T>
T dot(const T* a, const T* b, std::int64_t count);
template <typename T>
void scale_add(T alpha, const T* x, T beta, T* y, std::int64_t count);

void statistics(const float* values, std::int64_t count, TensorStatistics& result);
void norm_and_nonfinite(const float* values, std::int64_t count, NormAndNonfinite& result);

}  // namespace muster::kernels::MUSTER_SIMD_ISA
