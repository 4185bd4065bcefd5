// SPDX-License-Identifier: Apache-2.0
// The BLAS library behind the few calls the kernels make of it. No size may be 0.
#pragma once

#include <cstdint>

namespace muster::kernels {

template <typename T>
struct GemmCall {
  bool transpose_a{false};
  bool transpose_b{false};
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

void blas_gemm(const GemmCall<float>& call);
void blas_gemm(const GemmCall<double>& call);

// "SkylakeX", as OpenBLAS names it.
const char* blas_core_name();

}  // namespace muster::kernels
