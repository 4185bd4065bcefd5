// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/blas.h"

#include <muster/kernels/gemm.h>

#include <algorithm>

namespace muster::kernels {

namespace {

// The product has no terms: only beta counts.
template <typename T>
void scale(std::int64_t m, std::int64_t n, T beta, T* c, std::int64_t ldc) {
  for (std::int64_t row = 0; row < m; ++row) {
    T* first = c + row * ldc;
    std::transform(first, first + n, first, [beta](T x) { return beta == T{0} ? T{0} : beta * x; });
  }
}

}  // namespace

template <typename T>
void gemm(
    Transpose transpose_a,
    Transpose transpose_b,
    std::int64_t m,
    std::int64_t n,
    std::int64_t k,
    T alpha,
    const T* a,
    std::int64_t lda,
    const T* b,
    std::int64_t ldb,
    T beta,
    T* c,
    std::int64_t ldc) {
  if (m == 0 || n == 0) {
    return;
  }
  if (k == 0) {
    scale(m, n, beta, c, ldc);
    return;
  }
  blas_gemm(GemmCall<T>{
      .transpose_a = transpose_a == Transpose::kYes,
      .transpose_b = transpose_b == Transpose::kYes,
      .m = m,
      .n = n,
      .k = k,
      .alpha = alpha,
      .a = a,
      .lda = lda,
      .b = b,
      .ldb = ldb,
      .beta = beta,
      .c = c,
      .ldc = ldc});
}

template <typename T>
void linear_forward(
    const T* x, const T* weight, T* y, std::int64_t tokens, std::int64_t in, std::int64_t out) {
  gemm(Transpose::kNo, Transpose::kYes, tokens, out, in, T{1}, x, in, weight, in, T{0}, y, out);
}

template <typename T>
void linear_backward(
    const T* x,
    const T* weight,
    const T* dy,
    T* dx,
    bool accumulate_dx,
    T* dweight,
    std::int64_t tokens,
    std::int64_t in,
    std::int64_t out) {
  if (dx != nullptr) {
    gemm(
        Transpose::kNo,
        Transpose::kNo,
        tokens,
        in,
        out,
        T{1},
        dy,
        out,
        weight,
        in,
        accumulate_dx ? T{1} : T{0},
        dx,
        in);
  }
  gemm(Transpose::kYes, Transpose::kNo, out, in, tokens, T{1}, dy, out, x, in, T{1}, dweight, in);
}

#define MUSTER_INSTANTIATE(T)                                                                     \
  template void gemm(                                                                             \
      Transpose,                                                                                  \
      Transpose,                                                                                  \
      std::int64_t,                                                                               \
      std::int64_t,                                                                               \
      std::int64_t,                                                                               \
      T,                                                                                          \
      const T*,                                                                                   \
      std::int64_t,                                                                               \
      const T*,                                                                                   \
      std::int64_t,                                                                               \
      T,                                                                                          \
      T*,                                                                                         \
      std::int64_t);                                                                              \
  template void linear_forward(const T*, const T*, T*, std::int64_t, std::int64_t, std::int64_t); \
  template void linear_backward(                                                                  \
      const T*, const T*, const T*, T*, bool, T*, std::int64_t, std::int64_t, std::int64_t);
MUSTER_INSTANTIATE(float)
MUSTER_INSTANTIATE(double)

}  // namespace muster::kernels
