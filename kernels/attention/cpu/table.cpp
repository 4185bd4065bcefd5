// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/cpu/simd/tiles.h"
#include "kernels/cpu/isa.h"

namespace muster::kernels {

MUSTER_DECLARE_PER_ISA(FlashTable<float>, kFlashFloats);
MUSTER_DECLARE_PER_ISA(FlashTable<double>, kFlashDoubles);
MUSTER_DECLARE_BF16_ISA(FlashTable<float>, kFlashPairs);

template <>
const FlashTable<float>& flash_table(DType type) {
  static const auto& floats = MUSTER_PICK_PER_ISA(kFlashFloats);
  static const auto& halves = MUSTER_PICK_PER_ISA_BF16(kFlashFloats, kFlashPairs);
  return type == DType::kBFloat16 ? halves : floats;
}

template <>
const FlashTable<double>& flash_table(DType /*type*/) {
  static const auto& doubles = MUSTER_PICK_PER_ISA(kFlashDoubles);
  return doubles;
}

}  // namespace muster::kernels
