// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/simd/table.h"

#include "kernels/cpu/isa.h"

namespace muster::kernels {

MUSTER_DECLARE_PER_ISA(KernelTable<float>, kFloatTable);
MUSTER_DECLARE_PER_ISA(KernelTable<double>, kDoubleTable);
MUSTER_DECLARE_PER_ISA(OptimizerTable, kOptimizerTable);

template <>
const KernelTable<float>& kernel_table<float>() {
  static const auto& table = MUSTER_PICK_PER_ISA(kFloatTable);
  return table;
}

template <>
const KernelTable<double>& kernel_table<double>() {
  static const auto& table = MUSTER_PICK_PER_ISA(kDoubleTable);
  return table;
}

const OptimizerTable& optimizer_table() {
  static const auto& table = MUSTER_PICK_PER_ISA(kOptimizerTable);
  return table;
}

}  // namespace muster::kernels
