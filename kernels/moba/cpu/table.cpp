// SPDX-License-Identifier: Apache-2.0
#include "kernels/moba/cpu/simd/table.h"

#include "kernels/cpu/isa.h"

namespace muster::kernels {

MUSTER_DECLARE_PER_ISA(MobaTables, kMobaTables);

const MobaTables& moba_tables() {
  static const auto& tables = MUSTER_PICK_PER_ISA(kMobaTables);
  return tables;
}

template <>
const MobaTable<float>& moba_table<float>() {
  return moba_tables().floats;
}

template <>
const MobaTable<double>& moba_table<double>() {
  return moba_tables().doubles;
}

}  // namespace muster::kernels
