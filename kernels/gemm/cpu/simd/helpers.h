// SPDX-License-Identifier: Apache-2.0
// Tile sizes and small helpers of the packed products for one instruction set.
#pragma once

#include "kernels/cpu/simd/pack.h"
#include "kernels/gemm/cpu/simd/table.h"

#include <cstddef>

namespace muster::kernels::MUSTER_SIMD_ISA {

// Registers: 14 x 2 sums, 2 of the right operand, 1 of the left of 32 (AVX-512); 6 x 2 sums of 16
// (AVX2, a pack is two registers); 6 x 4 of 32 on AArch64, 2 x 4 of 16 else (four registers).
#if defined(__AVX512F__)
inline constexpr std::size_t kLeftLines = 14;
inline constexpr std::size_t kRightPacks = 2;
#elif defined(__AVX2__) || defined(__aarch64__)
inline constexpr std::size_t kLeftLines = 6;
inline constexpr std::size_t kRightPacks = 1;
#else
inline constexpr std::size_t kLeftLines = 2;
inline constexpr std::size_t kRightPacks = 1;
#endif
inline constexpr std::int64_t kRightLines = static_cast<std::int64_t>(kRightPacks) * kLanes<float>;

#if defined(__AVX512BF16__)
inline constexpr bool kBf16Pairs = true;
#else
inline constexpr bool kBf16Pairs = false;
#endif

constexpr std::int64_t least(std::int64_t a, std::int64_t b) {
  return a < b ? a : b;
}

// The first `count` lanes (all where count is larger), 0 in the others.
MUSTER_INLINE Pack<float> load_some(const float* p, std::int64_t count) {
  if (count >= kLanes<float>) {
    return load<Pack<float>>(p);
  }
#if defined(__AVX512F__)
  const auto mask = static_cast<__mmask16>(count <= 0 ? 0U : (1U << count) - 1U);
  return {Pack<float>::Native(_mm512_maskz_loadu_ps(mask, p))};
#else
  return load_part(p, count, 0.0F);
#endif
}

MUSTER_INLINE void store_some(float* p, Pack<float> value, std::int64_t count) {
  if (count >= kLanes<float>) {
    store(p, value);
    return;
  }
#if defined(__AVX512F__)
  const auto mask = static_cast<__mmask16>(count <= 0 ? 0U : (1U << count) - 1U);
  _mm512_mask_storeu_ps(p, mask, __m512(value.v));
#else
  store_part(p, value, count);
#endif
}

#if defined(__AVX512F__)
// 32 bits that need not be a number.
MUSTER_INLINE Pack<float> broadcast_bits(const float* p) {
  std::int32_t bits;  // NOLINT(cppcoreguidelines-init-variables): the next line writes it
  __builtin_memcpy(&bits, p, sizeof(bits));
  return {Pack<float>::Native(_mm512_maskz_set1_epi32(0xFFFF, bits))};
}
#endif

void pack(PanelSide side, DType type, const PanelSource& source, float* to);
void multiply(DType type, const PanelProduct& product);
void mirror(float* c, std::int64_t stride, std::int64_t n, std::int64_t begin, std::int64_t end);
void transpose(
    const float* from,
    std::int64_t from_stride,
    std::int64_t rows,
    std::int64_t cols,
    float* to,
    std::int64_t to_stride);
void scale(const float* from, std::int64_t count, double factor, float* to);
void probe_add(const float* row, std::int64_t cols, const float* signs, float* y);
void probe_dot(const float* row, std::int64_t cols, const float* y, float* dots);

}  // namespace muster::kernels::MUSTER_SIMD_ISA
