// SPDX-License-Identifier: Apache-2.0
// 16-bit conversions, stochastic rounding and 8-bit blocks of whole arrays.
#include "kernels/update/cpu/simd/rule_loop.h"

namespace muster::kernels::MUSTER_SIMD_ISA {

namespace {

// f(from, to) for whole packs, through padded copies for the rest.
template <typename From, typename To, typename F>
MUSTER_INLINE void for_packs(const From* from, To* to, std::int64_t count, F f) {
  std::int64_t i = 0;
  for (; i + kLanes<float> <= count; i += kLanes<float>) {
    f(from + i, to + i, i);
  }
  if (i == count) {
    return;
  }
  From padded[kLanes<float>] = {};
  To result[kLanes<float>];
  for (std::int64_t k = i; k < count; ++k) {
    padded[k - i] = from[k];
  }
  f(padded, result, i);
  for (std::int64_t k = i; k < count; ++k) {
    to[k] = result[k - i];
  }
}

template <bool kSigned>
void quantise_all(const float* values, std::uint8_t* codes, float* absmax, std::int64_t count) {
  for (std::int64_t base = 0; base < count; base += kBlockSize) {
    const std::int64_t rest = count - base;
    Tail<float> padded(nullptr, 0, 0);
    const bool whole = rest >= kBlockSize;
    if (!whole) {
      padded = Tail<float>(values + base, rest, 0);
    }
    const float* block = whole ? values + base : padded.values;
    BlockRange range;
    for (int j = 0; j < kBlockPacks; ++j) {
      range.add<kSigned>(load<Floats>(block + j * kLanes<float>));
    }
    if (whole) {
      absmax[base / kBlockSize] = quantise_block<kSigned>(block, codes + base, kBlockPacks, range);
    } else {
      Tail<std::uint8_t> result(nullptr, 0, 0);
      absmax[base / kBlockSize] = quantise_block<kSigned>(block, result.values, kBlockPacks, range);
      result.write(codes + base, rest);
    }
  }
}

template <bool kSigned>
void dequantise_all(
    const std::uint8_t* codes, const float* absmax, float* values, std::int64_t count) {
  for (std::int64_t base = 0; base < count; base += kBlockSize) {
    const std::int64_t rest = count - base;
    const auto scale = broadcast<Floats>(absmax[base / kBlockSize]);
    for_packs(
        codes + base,
        values + base,
        rest < kBlockSize ? rest : kBlockSize,
        [scale](const std::uint8_t* from, float* to, std::int64_t)
            MUSTER_INLINE_LAMBDA { store(to, dequantise_pack<kSigned>(from, scale)); });
  }
}

}  // namespace

void narrow_floats(DType type, const float* from, std::uint16_t* to, std::int64_t count) {
  if (type == DType::kBFloat16) {
    for_packs(
        from, to, count, [](const float* a, std::uint16_t* b, std::int64_t) MUSTER_INLINE_LAMBDA {
          store_as(b, load<Floats>(a), [](int, auto x) MUSTER_INLINE_LAMBDA { return to_bf16(x); });
        });
  } else {
    for_packs(
        from, to, count, [](const float* a, std::uint16_t* b, std::int64_t) MUSTER_INLINE_LAMBDA {
          store_as(b, load<Floats>(a), [](int, auto x) MUSTER_INLINE_LAMBDA { return to_fp16(x); });
        });
  }
}

void widen_floats(DType type, const std::uint16_t* from, float* to, std::int64_t count) {
  const bool is_bf16 = type == DType::kBFloat16;
  for_packs(
      from,
      to,
      count,
      [is_bf16](const std::uint16_t* a, float* b, std::int64_t) MUSTER_INLINE_LAMBDA {
        store(b, load_as<Floats>(a, [is_bf16](auto bits) MUSTER_INLINE_LAMBDA {
                typedef float V __attribute__((vector_size(sizeof(bits))));  // NOLINT
                return is_bf16 ? from_bf16<V>(bits) : from_fp16<V>(bits);
              }));
      });
}

void narrow_stochastic_floats(
    const float* from,
    std::uint16_t* to,
    std::int64_t count,
    const RoundingKey& key,
    std::int64_t first_index) {
  StochasticRounder rounder(key);
  for_packs(
      from,
      to,
      count,
      [&rounder, first_index](const float* a, std::uint16_t* b, std::int64_t i)
          MUSTER_INLINE_LAMBDA {
            rounder.store(b, load<Floats>(a), static_cast<std::uint64_t>(first_index + i));
          });
}

void quantise_floats(
    bool is_signed, const float* values, std::uint8_t* codes, float* absmax, std::int64_t count) {
  if (is_signed) {
    quantise_all<true>(values, codes, absmax, count);
  } else {
    quantise_all<false>(values, codes, absmax, count);
  }
}

void dequantise_floats(
    bool is_signed,
    const std::uint8_t* codes,
    const float* absmax,
    float* values,
    std::int64_t count) {
  if (is_signed) {
    dequantise_all<true>(codes, absmax, values, count);
  } else {
    dequantise_all<false>(codes, absmax, values, count);
  }
}

void scale_floats(float* values, float factor, std::int64_t count) {
  const auto factors = broadcast<Floats>(factor);
  for_packs(
      values,
      values,
      count,
      [factors](const float* a, float* b, std::int64_t)
          MUSTER_INLINE_LAMBDA { store(b, load<Floats>(a) * factors); });
}

}  // namespace muster::kernels::MUSTER_SIMD_ISA
