// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/simd/functions.h"

namespace muster::kernels::MUSTER_SIMD_ISA {

namespace {

template <typename T>
constexpr KernelTable<T> make_table() {
  return {
      .rms_norm_forward = &MUSTER_SIMD_ISA::rms_norm_forward<T>,
      .rms_norm_backward = &MUSTER_SIMD_ISA::rms_norm_backward<T>,
      .swiglu_forward = &MUSTER_SIMD_ISA::swiglu_forward<T>,
      .swiglu_backward = &MUSTER_SIMD_ISA::swiglu_backward<T>,
      .cross_entropy = &MUSTER_SIMD_ISA::cross_entropy<T>,
      .rope = &MUSTER_SIMD_ISA::rope<T>,
      .softmax = &MUSTER_SIMD_ISA::softmax<T>,
      .dot = &MUSTER_SIMD_ISA::dot<T>,
      .scale_add = &MUSTER_SIMD_ISA::scale_add<T>};
}

}  // namespace

extern const KernelTable<float> kFloatTable;
extern const KernelTable<double> kDoubleTable;
extern const OptimizerTable kOptimizerTable;

const KernelTable<float> kFloatTable = make_table<float>();
const KernelTable<double> kDoubleTable = make_table<double>();
const OptimizerTable kOptimizerTable{
    .statistics = &MUSTER_SIMD_ISA::statistics,
    .norm_and_nonfinite = &MUSTER_SIMD_ISA::norm_and_nonfinite};

}  // namespace muster::kernels::MUSTER_SIMD_ISA
