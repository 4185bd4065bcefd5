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
void gemm(const GemmCall<T>& call) {
  if (call.m == 0 || call.n == 0) {
    return;
  }
  if (call.k == 0) {
    scale(call.m, call.n, call.beta, call.c, call.ldc);
    return;
  }
  blas_gemm(call);
}

template <typename T>
void linear_forward(
    const T* x, const T* weight, T* y, std::int64_t tokens, std::int64_t in, std::int64_t out) {
  gemm(GemmCall<T>{
      .transpose_b = Transpose::kYes,
      .m = tokens,
      .n = out,
      .k = in,
      .a = x,
      .lda = in,
      .b = weight,
      .ldb = in,
      .c = y,
      .ldc = out});
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
    gemm(GemmCall<T>{
        .m = tokens,
        .n = in,
        .k = out,
        .a = dy,
        .lda = out,
        .b = weight,
        .ldb = in,
        .beta = accumulate_dx ? T{1} : T{0},
        .c = dx,
        .ldc = in});
  }
  gemm(GemmCall<T>{
      .transpose_a = Transpose::kYes,
      .m = out,
      .n = in,
      .k = tokens,
      .a = dy,
      .lda = out,
      .b = x,
      .ldb = in,
      .beta = T{1},
      .c = dweight,
      .ldc = in});
}

#define MUSTER_INSTANTIATE(T)                                                                     \
  template void gemm(const GemmCall<T>&);                                                         \
  template void linear_forward(const T*, const T*, T*, std::int64_t, std::int64_t, std::int64_t); \
  template void linear_backward(                                                                  \
      const T*, const T*, const T*, T*, bool, T*, std::int64_t, std::int64_t, std::int64_t);
MUSTER_INSTANTIATE(float)
MUSTER_INSTANTIATE(double)
#undef MUSTER_INSTANTIATE

}  // namespace muster::kernels
