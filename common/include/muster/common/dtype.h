// SPDX-License-Identifier: Apache-2.0
// Element types of tensors, shared by kernels, communication, optimizer and checkpoints.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace muster {

enum class DType : std::uint8_t {
  kFloat32,
  kFloat64,
  kInt32,
  kInt64,
  kUint8,
  kBFloat16,
  kFloat16,
  kInt8,
  kInt16,
  kUint16,
  kUint32,
  kUint64,
  kBool,
};

[[nodiscard]] constexpr std::size_t size_bytes(DType dtype) {
  switch (dtype) {
    case DType::kUint8:
    case DType::kInt8:
    case DType::kBool:
      return 1;
    case DType::kBFloat16:
    case DType::kFloat16:
    case DType::kInt16:
    case DType::kUint16:
      return 2;
    case DType::kFloat32:
    case DType::kInt32:
    case DType::kUint32:
      return 4;
    case DType::kFloat64:
    case DType::kInt64:
    case DType::kUint64:
      break;
  }
  return 8;
}

// Returns the bytes of `count` elements.
[[nodiscard]] constexpr std::int64_t size_bytes(DType dtype, std::int64_t count) {
  return count * static_cast<std::int64_t>(size_bytes(dtype));
}

// Returns the long name: "float32", "bfloat16", "int64", "bool".
[[nodiscard]] std::string_view to_string(DType dtype);

// Returns the short name that flags and messages use: "fp32", "bf16", "int64", "bool". Floating
// point types differ from the long name, all others are the same.
[[nodiscard]] std::string_view short_name(DType dtype);

// Returns the name in a safetensors header: "F32", "BF16", "I64", "BOOL".
[[nodiscard]] std::string_view safetensors_name(DType dtype);

// Parses a long or short name. Returns no value for an unknown name.
[[nodiscard]] std::optional<DType> parse_dtype(std::string_view name);

// Parses a safetensors name. Returns no value for an unknown name, and for the types of safetensors
// that muster does not compute with (complex, 4-, 6- and 8-bit floating point).
[[nodiscard]] std::optional<DType> parse_safetensors_dtype(std::string_view name);

// Maps a C++ type to its DType. Undefined for other types; bfloat16 and float16 have no C++ type.
template <typename T>
struct DTypeOf;

template <DType dtype>
struct DTypeConstant {
  static constexpr DType kValue = dtype;
};

template <>
struct DTypeOf<float> : DTypeConstant<DType::kFloat32> {};

template <>
struct DTypeOf<double> : DTypeConstant<DType::kFloat64> {};

template <>
struct DTypeOf<std::int8_t> : DTypeConstant<DType::kInt8> {};

template <>
struct DTypeOf<std::int16_t> : DTypeConstant<DType::kInt16> {};

template <>
struct DTypeOf<std::int32_t> : DTypeConstant<DType::kInt32> {};

template <>
struct DTypeOf<std::int64_t> : DTypeConstant<DType::kInt64> {};

template <>
struct DTypeOf<std::uint8_t> : DTypeConstant<DType::kUint8> {};

template <>
struct DTypeOf<std::uint16_t> : DTypeConstant<DType::kUint16> {};

template <>
struct DTypeOf<std::uint32_t> : DTypeConstant<DType::kUint32> {};

template <>
struct DTypeOf<std::uint64_t> : DTypeConstant<DType::kUint64> {};

}  // namespace muster
