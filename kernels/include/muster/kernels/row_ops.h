// SPDX-License-Identifier: Apache-2.0
// Operations on rows of floats or doubles, vectorised for the processor. Conventions as in gemm.h.
#pragma once

#include <cstdint>

namespace muster::kernels {

// scores[rows, columns] = softmax of each row of logits[rows, columns]; both may be the same
// memory.
template <typename T>
void softmax(const T* logits, T* scores, std::int64_t rows, std::int64_t columns);

template <typename T>
[[nodiscard]] T dot(const T* a, const T* b, std::int64_t count);

// y = beta * y + alpha * x; beta 0 overwrites, whatever y held.
template <typename T>
void scale_add(T alpha, const T* x, T beta, T* y, std::int64_t count);

}  // namespace muster::kernels
