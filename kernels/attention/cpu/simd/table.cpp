// SPDX-License-Identifier: Apache-2.0
// The tiles of attention for one instruction set.
#include "kernels/attention/cpu/simd/functions.h"
#include "kernels/attention/cpu/simd/micro.h"

namespace muster::kernels::MUSTER_SIMD_ISA {

namespace {

template <typename Math>
constexpr FlashTable<typename Math::Scalar> make_table(const char* path) {
  using T = typename Math::Scalar;
  return {
      .path = path,
      .pair = Math::kPair,
      .pack_lanes = &MUSTER_SIMD_ISA::flash_pack_lanes<Math>,
      .pack_keys = &MUSTER_SIMD_ISA::flash_pack_keys<Math>,
      .pack_across = &MUSTER_SIMD_ISA::flash_pack_across<Math>,
      .pack_along = &MUSTER_SIMD_ISA::flash_pack_along<Math>,
      .forward = &MUSTER_SIMD_ISA::flash_forward<Math>,
      .backward = &MUSTER_SIMD_ISA::flash_backward<Math>,
      .unpack_lanes = &MUSTER_SIMD_ISA::flash_unpack_lanes,
      .unpack_rows = &MUSTER_SIMD_ISA::flash_unpack_rows,
      .dots = &MUSTER_SIMD_ISA::flash_dots,
      .add = &MUSTER_SIMD_ISA::flash_add<T>,
      .exponentials = &MUSTER_SIMD_ISA::flash_exponentials<T>};
}

}  // namespace

#define MUSTER_NAME_OF(isa) #isa
#define MUSTER_NAME(isa) MUSTER_NAME_OF(isa)
#if defined(__AVX512BF16__)
extern const FlashTable<float> kFlashPairs;
const FlashTable<float> kFlashPairs = make_table<PairMath>("avx512_bf16");
#else
extern const FlashTable<float> kFlashFloats;
extern const FlashTable<double> kFlashDoubles;
const FlashTable<float> kFlashFloats = make_table<PlainMath<float>>(MUSTER_NAME(MUSTER_SIMD_ISA));
const FlashTable<double> kFlashDoubles =
    make_table<PlainMath<double>>(MUSTER_NAME(MUSTER_SIMD_ISA));
#endif

}  // namespace muster::kernels::MUSTER_SIMD_ISA
