// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/cpu/simd/table.h"

#include "kernels/cpu/isa.h"

namespace muster::kernels {

MUSTER_DECLARE_PER_ISA(GemmTable, kGemmTable);
MUSTER_DECLARE_BF16_ISA(GemmTable, kGemmTable);

const GemmTable& gemm_table() {
  static const auto& table = MUSTER_PICK_PER_ISA_BF16(kGemmTable, kGemmTable);
  return table;
}

}  // namespace muster::kernels
