// What the kernels need from the BLAS library beyond gemm.h.
#pragma once

#include <cstdint>

namespace muster::kernels {

// c[n, n] = x * x^T with x[n, k], or x^T * x with x[k, n] when `transpose`; both triangles are
// written and exactly equal. Half the work of gemm.
void symmetric_product(bool transpose, std::int64_t n, std::int64_t k, const float* x, float* c);

}  // namespace muster::kernels
