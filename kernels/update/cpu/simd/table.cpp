// SPDX-License-Identifier: Apache-2.0
#include "kernels/update/cpu/simd/table.h"

namespace muster::kernels::MUSTER_SIMD_ISA {

// momentum.cpp, adam.cpp
void sgd_rule(
    const UpdateTensors& t, const UpdateStep& step, const UpdateScalars& f, UpdateStatistics& sums);
void muon_apply_rule(
    const UpdateTensors& t, const UpdateStep& step, const UpdateScalars& f, UpdateStatistics& sums);
void rmsprop_rule(
    const UpdateTensors& t, const UpdateStep& step, const UpdateScalars& f, UpdateStatistics& sums);
void momentum_rule(
    const UpdateTensors& t, const UpdateStep& step, const UpdateScalars& f, UpdateStatistics& sums);
void muon_momentum_rule(
    const UpdateTensors& t,
    const UpdateStep& step,
    const UpdateScalars& f,
    float* direction,
    UpdateStatistics& sums);
void adam_rule(
    const UpdateTensors& t, const UpdateStep& step, const UpdateScalars& f, UpdateStatistics& sums);

// low_precision.cpp
void narrow_floats(DType type, const float* from, std::uint16_t* to, std::int64_t count);
void widen_floats(DType type, const std::uint16_t* from, float* to, std::int64_t count);
void narrow_stochastic_floats(
    const float* from,
    std::uint16_t* to,
    std::int64_t count,
    const RoundingKey& key,
    std::int64_t first_index);
void quantise_floats(
    bool is_signed, const float* values, std::uint8_t* codes, float* absmax, std::int64_t count);
void dequantise_floats(
    bool is_signed,
    const std::uint8_t* codes,
    const float* absmax,
    float* values,
    std::int64_t count);
void scale_floats(float* values, float factor, std::int64_t count);

extern const UpdateTable kUpdateTable;

const UpdateTable kUpdateTable{
    .sgd = &sgd_rule,
    .momentum = &momentum_rule,
    .rmsprop = &rmsprop_rule,
    .adam = &adam_rule,
    .muon_momentum = &muon_momentum_rule,
    .muon_apply = &muon_apply_rule,
    .narrow = &narrow_floats,
    .widen = &widen_floats,
    .narrow_stochastic = &narrow_stochastic_floats,
    .quantise = &quantise_floats,
    .dequantise = &dequantise_floats,
    .scale = &scale_floats};

}  // namespace muster::kernels::MUSTER_SIMD_ISA
