// SPDX-License-Identifier: Apache-2.0
#include "kernels/update/cpu/simd/table.h"

#include "kernels/cpu/isa.h"

namespace muster::kernels {

MUSTER_DECLARE_PER_ISA(UpdateTable, kUpdateTable);

const UpdateTable& update_table() {
  static const auto& table = MUSTER_PICK_PER_ISA(kUpdateTable);
  return table;
}

}  // namespace muster::kernels
