// SPDX-License-Identifier: Apache-2.0
#include "kernels/low_precision/cpu/quant_tables.h"
#include "kernels/update/cpu/simd/table.h"

#include <muster/common/check.h>
#include <muster/common/hash.h>
#include <muster/kernels/low_precision.h>
#include <muster/kernels/update_kernels.h>

#include <algorithm>
#include <bit>
#include <cstdlib>

namespace muster::kernels {

namespace {

// As map_value in cpu/simd/bits.h.
float quant_value(const QuantTables& tables, bool is_signed, int code) {
  const int distance = code - 127;
  const float f =
      is_signed ? static_cast<float>(std::abs(distance)) + 0.5F : static_cast<float>(code + 1);
  const std::uint32_t slot = (std::bit_cast<std::uint32_t>(f) >> 23U) & 15U;
  const float magnitude = (f + tables.shift[slot]) * tables.step[slot];
  return is_signed && distance < 0 ? -magnitude : magnitude;
}

std::array<float, 256> make_map(bool is_signed) {
  std::array<float, 256> map{};
  for (int code = 0; code < 256; ++code) {
    map[static_cast<std::size_t>(code)] =
        quant_value(is_signed ? kQuantTables<true> : kQuantTables<false>, is_signed, code);
  }
  return map;
}

void check_narrow(DType type, std::size_t wide, std::size_t narrow) {
  MUSTER_CHECK(
      type == DType::kBFloat16 || type == DType::kFloat16,
      "narrow and widen convert 16-bit floats: the type must be bf16 or fp16");
  MUSTER_CHECK(wide == narrow, "narrow and widen need as many 16-bit elements as floats");
}

void check_blocks(std::size_t values, std::size_t codes, std::size_t absmax) {
  constexpr auto kBlock = static_cast<std::size_t>(kQuantBlock);
  MUSTER_CHECK(codes == values, "8-bit states have one code per value");
  MUSTER_CHECK(absmax == (values + kBlock - 1) / kBlock, "8-bit states have one absmax per block");
}

}  // namespace

const char* to_string(StateType type) {
  switch (type) {
    case StateType::kFloat32:
      return "float32";
    case StateType::kBFloat16:
      return "bfloat16";
    case StateType::kInt8Block:
      return "int8_block";
  }
  return "unknown";
}

const char* to_string(CodeRounding rounding) {
  switch (rounding) {
    case CodeRounding::kStochastic:
      return "stochastic";
    case CodeRounding::kNearest:
      return "nearest";
  }
  return "unknown";
}

void narrow(DType type, std::span<const float> from, std::span<std::uint16_t> to) {
  check_narrow(type, from.size(), to.size());
  update_table().narrow(type, from.data(), to.data(), std::ssize(from));
}

void widen(DType type, std::span<const std::uint16_t> from, std::span<float> to) {
  check_narrow(type, to.size(), from.size());
  update_table().widen(type, from.data(), to.data(), std::ssize(from));
}

void narrow_stochastic(
    std::span<const float> from,
    std::span<std::uint16_t> to,
    const RoundingKey& key,
    std::int64_t first_index) {
  check_narrow(DType::kBFloat16, from.size(), to.size());
  update_table().narrow_stochastic(from.data(), to.data(), std::ssize(from), key, first_index);
}

const std::array<float, 256>& quant_map(bool is_signed) {
  static const std::array<float, 256> kSigned = make_map(true);
  static const std::array<float, 256> kUnsigned = make_map(false);
  return is_signed ? kSigned : kUnsigned;
}

std::uint64_t quant_map_hash() {
  std::array<float, 512> both{};
  std::copy(quant_map(true).begin(), quant_map(true).end(), both.begin());
  std::copy(quant_map(false).begin(), quant_map(false).end(), both.begin() + 256);
  return hash64(std::as_bytes(std::span(both)));
}

void quantise(
    bool is_signed,
    std::span<const float> values,
    std::span<std::uint8_t> codes,
    std::span<float> absmax) {
  check_blocks(values.size(), codes.size(), absmax.size());
  update_table().quantise(
      is_signed, values.data(), codes.data(), absmax.data(), std::ssize(values));
}

void dequantise(
    bool is_signed,
    std::span<const std::uint8_t> codes,
    std::span<const float> absmax,
    std::span<float> values) {
  check_blocks(values.size(), codes.size(), absmax.size());
  update_table().dequantise(
      is_signed, codes.data(), absmax.data(), values.data(), std::ssize(values));
}

void scale_elements(
    std::span<float> values,
    std::span<std::uint16_t> narrow_copy,
    DType narrow_type,
    double factor) {
  update_table().scale(values.data(), static_cast<float>(factor), std::ssize(values));
  if (!narrow_copy.empty()) {
    narrow(narrow_type, values, narrow_copy);
  }
}

}  // namespace muster::kernels
