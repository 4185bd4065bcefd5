// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/simd/table.h"

#include <muster/kernels/row_ops.h>

namespace muster::kernels {

template <typename T>
void softmax(const T* logits, T* scores, std::int64_t rows, std::int64_t columns) {
  kernel_table<T>().softmax(logits, scores, rows, columns);
}

template <typename T>
T dot(const T* a, const T* b, std::int64_t count) {
  return kernel_table<T>().dot(a, b, count);
}

template <typename T>
void scale_add(T alpha, const T* x, T beta, T* y, std::int64_t count) {
  kernel_table<T>().scale_add(alpha, x, beta, y, count);
}

#define MUSTER_INSTANTIATE(T)                                      \
  template void softmax(const T*, T*, std::int64_t, std::int64_t); \
  template T dot(const T*, const T*, std::int64_t);                \
  template void scale_add(T, const T*, T, T*, std::int64_t);
MUSTER_INSTANTIATE(float)
MUSTER_INSTANTIATE(double)
#undef MUSTER_INSTANTIATE

}  // namespace muster::kernels
