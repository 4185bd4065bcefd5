// SPDX-License-Identifier: Apache-2.0
// Element types of tensors, shared by kernels, communication, optimizer and checkpoints.
#pragma once

#include <muster/common/dtype_enum.h>

#include <cstdint>
#include <optional>
#include <string_view>

namespace muster {

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
