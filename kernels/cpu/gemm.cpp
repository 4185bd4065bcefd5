#include "cpu/blas.h"

#include <muster/kernels/gemm.h>

#include <cblas.h>

#include <algorithm>
#include <cstdlib>

namespace muster::kernels {

namespace {

// One BLAS thread per process: a rank is a process and owns its share of the cores. Whoever wants
// another number says so with OpenBLAS's own variables, which it reads when it is loaded.
void limit_threads_once() {
  static const bool done = [] {
    // NOLINTBEGIN(concurrency-mt-unsafe): nobody writes the environment after start
    if (std::getenv("OPENBLAS_NUM_THREADS") == nullptr &&
        std::getenv("OMP_NUM_THREADS") == nullptr) {
      openblas_set_num_threads(1);
    }
    // NOLINTEND(concurrency-mt-unsafe)
    return true;
  }();
  static_cast<void>(done);
}

CBLAS_TRANSPOSE to_blas(Transpose transpose) {
  return transpose == Transpose::kYes ? CblasTrans : CblasNoTrans;
}

blasint to_blas(std::int64_t size) {
  return static_cast<blasint>(size);
}

void call_gemm(
    CBLAS_TRANSPOSE ta,
    CBLAS_TRANSPOSE tb,
    blasint m,
    blasint n,
    blasint k,
    float alpha,
    const float* a,
    blasint lda,
    const float* b,
    blasint ldb,
    float beta,
    float* c,
    blasint ldc) {
  cblas_sgemm(CblasRowMajor, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

void call_gemm(
    CBLAS_TRANSPOSE ta,
    CBLAS_TRANSPOSE tb,
    blasint m,
    blasint n,
    blasint k,
    double alpha,
    const double* a,
    blasint lda,
    const double* b,
    blasint ldb,
    double beta,
    double* c,
    blasint ldc) {
  cblas_dgemm(CblasRowMajor, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

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
  limit_threads_once();
  call_gemm(
      to_blas(transpose_a),
      to_blas(transpose_b),
      to_blas(m),
      to_blas(n),
      to_blas(k),
      alpha,
      a,
      to_blas(lda),
      b,
      to_blas(ldb),
      beta,
      c,
      to_blas(ldc));
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

void symmetric_product(bool transpose, std::int64_t n, std::int64_t k, const float* x, float* c) {
  if (n == 0) {
    return;
  }
  limit_threads_once();
  const std::int64_t stride = transpose ? n : k;
  cblas_ssyrk(
      CblasRowMajor,
      CblasLower,
      transpose ? CblasTrans : CblasNoTrans,
      to_blas(n),
      to_blas(k),
      1.0F,
      x,
      to_blas(std::max<std::int64_t>(stride, 1)),
      0.0F,
      c,
      to_blas(n));
  for (std::int64_t row = 0; row < n; ++row) {
    for (std::int64_t column = 0; column < row; ++column) {
      c[column * n + row] = c[row * n + column];
    }
  }
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
