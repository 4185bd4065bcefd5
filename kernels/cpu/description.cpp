// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/blas.h"
#include "kernels/cpu/simd/table.h"

#include <muster/kernels/backend.h>

namespace muster::kernels {

std::string cpu_description() {
  return std::string(instruction_set()) + " kernels, " + blas_core_name() + " BLAS";
}

}  // namespace muster::kernels
