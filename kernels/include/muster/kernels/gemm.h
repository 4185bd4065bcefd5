// SPDX-License-Identifier: Apache-2.0
// Matrix products through the BLAS library, row-major, fp32 and fp64.
//
// All kernels of this module are templates on the element type, instantiated for float and double
// (double is what the gradient tests run). Unless noted otherwise: row-major, contiguous, no
// aliasing between inputs and outputs, single-threaded, never throwing, sizes may be 0.
#pragma once

#include <cstdint>

namespace muster::kernels {

enum class Transpose : bool { kNo = false, kYes = true };

// C[m, n] = alpha * op(A) * op(B) + beta * C, op(A) is [m, k], op(B) is [k, n].
// `lda` etc. are row strides of the matrices as stored. beta = 0 overwrites C even where it is NaN.
template <typename T>
struct GemmCall {
  Transpose transpose_a{Transpose::kNo};
  Transpose transpose_b{Transpose::kNo};
  std::int64_t m{0};
  std::int64_t n{0};
  std::int64_t k{0};
  T alpha{1};
  const T* a{nullptr};
  std::int64_t lda{0};
  const T* b{nullptr};
  std::int64_t ldb{0};
  T beta{0};
  T* c{nullptr};
  std::int64_t ldc{0};
};

template <typename T>
void gemm(const GemmCall<T>& call);

// Forwards for one release.
template <typename T>  // NOLINTNEXTLINE(readability-function-size)
[[deprecated("pass a GemmCall")]] void gemm(
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
  gemm(GemmCall<T>{transpose_a, transpose_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc});
}

// y[tokens, out] = x[tokens, in] * weight[out, in]^T
template <typename T>
void linear_forward(
    const T* x, const T* weight, T* y, std::int64_t tokens, std::int64_t in, std::int64_t out);

// dx[tokens, in] = dy * weight (overwritten, or added to when `accumulate_dx`; skipped if null);
// dweight[out, in] += dy^T * x.
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
    std::int64_t out);

}  // namespace muster::kernels
