// SPDX-License-Identifier: Apache-2.0
// 16-bit floats, counter-based stochastic rounding, and 8-bit block-wise states.
//
// Bits are carried as std::uint16_t: bf16 is the upper half of an fp32, fp16 is IEEE binary16.
#pragma once

#include <muster/common/dtype.h>

#include <array>
#include <cstdint>
#include <span>

namespace muster::kernels {

using FloatType [[deprecated("use muster::DType")]] = DType;

// Round to nearest even; NaN stays NaN, overflow becomes infinity. `type` is a 16-bit type; spans
// of equal length.
void narrow(DType type, std::span<const float> from, std::span<std::uint16_t> to);
void widen(DType type, std::span<const std::uint16_t> from, std::span<float> to);

// Source of the random bits of one tensor's stochastic rounding: a function of (seed, step, tensor,
// element index in the global tensor), so that it is reproducible and does not depend on how the
// tensor is sharded.
struct RoundingKey {
  std::uint64_t seed{0};
  std::int64_t step{0};
  std::uint64_t tensor{0};  // e.g. the hash of its checkpoint name
};

// fp32 -> bf16: adds 16 uniform random bits below the cut and truncates: unbiased. NaN and infinity
// pass unchanged. `first_index` is the global index of from[0].
void narrow_stochastic(
    std::span<const float> from,
    std::span<std::uint16_t> to,
    const RoundingKey& key,
    std::int64_t first_index);

// Storage of an optimizer state.
enum class StateType : std::uint8_t { kFloat32, kBFloat16, kInt8Block };

[[nodiscard]] const char* to_string(StateType type);

// Rounding of a new 8-bit state to a code. kStochastic: to one of the two codes around it, with the
// probabilities that keep its mean; changes too small for a code add up. kNearest: such changes are
// lost, and a state may stay where it is for ever.
enum class CodeRounding : std::uint8_t { kStochastic, kNearest };

[[nodiscard]] const char* to_string(CodeRounding rounding);

// Elements that share one absmax in kInt8Block.
inline constexpr std::int64_t kQuantBlock = 256;

// The dynamic 8-bit maps of Dettmers et al. (arXiv 2110.02861), signed for m and momentum, unsigned
// for v: 256 ascending values in [-1, 1] or [0, 1].
[[nodiscard]] const std::array<float, 256>& quant_map(bool is_signed);
// Identifies both maps in a checkpoint.
[[nodiscard]] std::uint64_t quant_map_hash();

// codes[n], absmax[ceil(n / 256)]: the nearest code of value / absmax(block). absmax is the scale
// of the block, the value of the last code: the largest magnitude, or, where that is of a negative
// value, 1.007 times it (the signed map ends at -0.993), rounded to 16 significant bits; at least
// the smallest normal float unless all values are 0. So nothing is cut off, and quantising what was
// dequantised gives the same codes and scales. An all-zero block has absmax 0; whatever its codes
// are, it reads as zeros. A value that is not finite makes its whole block so.
// In the unsigned map a value above 0 never becomes code 0 (v = 0 with m != 0 would step by
// m / epsilon), a negative one always does; in the signed map a sign is kept as long as the code is
// not that of 0.
void quantise(
    bool is_signed,
    std::span<const float> values,
    std::span<std::uint8_t> codes,
    std::span<float> absmax);
void dequantise(
    bool is_signed,
    std::span<const std::uint8_t> codes,
    std::span<const float> absmax,
    std::span<float> values);

}  // namespace muster::kernels
