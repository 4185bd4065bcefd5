// SPDX-License-Identifier: Apache-2.0
// The BLAS library behind the few calls the kernels make of it. No size may be 0.
#pragma once

#include <muster/kernels/gemm.h>

namespace muster::kernels {

void blas_gemm(const GemmCall<float>& call);
void blas_gemm(const GemmCall<double>& call);

// "SkylakeX", as OpenBLAS names it.
const char* blas_core_name();

}  // namespace muster::kernels
