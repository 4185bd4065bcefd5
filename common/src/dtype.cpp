// SPDX-License-Identifier: Apache-2.0
#include <muster/common/check.h>
#include <muster/common/dtype.h>

#include <array>

namespace muster {

namespace {

struct Row {
  DType dtype;
  std::string_view name;
  std::string_view short_name;
  std::string_view safetensors_name;
};

// In the order of the enumerators.
constexpr std::array kRows{
    Row{DType::kFloat32, "float32", "fp32", "F32"},
    Row{DType::kFloat64, "float64", "fp64", "F64"},
    Row{DType::kInt32, "int32", "int32", "I32"},
    Row{DType::kInt64, "int64", "int64", "I64"},
    Row{DType::kUint8, "uint8", "uint8", "U8"},
    Row{DType::kBFloat16, "bfloat16", "bf16", "BF16"},
    Row{DType::kFloat16, "float16", "fp16", "F16"},
    Row{DType::kInt8, "int8", "int8", "I8"},
    Row{DType::kInt16, "int16", "int16", "I16"},
    Row{DType::kUint16, "uint16", "uint16", "U16"},
    Row{DType::kUint32, "uint32", "uint32", "U32"},
    Row{DType::kUint64, "uint64", "uint64", "U64"},
    Row{DType::kBool, "bool", "bool", "BOOL"},
};

constexpr bool rows_are_in_order() {
  for (std::size_t i = 0; i < kRows.size(); ++i) {
    if (static_cast<std::size_t>(kRows[i].dtype) != i) {
      return false;
    }
  }
  return true;
}

static_assert(rows_are_in_order());
static_assert(static_cast<std::size_t>(DType::kBool) + 1 == kRows.size());

const Row& row(DType dtype) {
  const auto index = static_cast<std::size_t>(dtype);
  MUSTER_CHECK(index < kRows.size(), "not a DType");
  return kRows[index];
}

}  // namespace

std::string_view to_string(DType dtype) {
  return row(dtype).name;
}

std::string_view short_name(DType dtype) {
  return row(dtype).short_name;
}

std::string_view safetensors_name(DType dtype) {
  return row(dtype).safetensors_name;
}

std::optional<DType> parse_dtype(std::string_view name) {
  for (const Row& row : kRows) {
    if (row.name == name || row.short_name == name) {
      return row.dtype;
    }
  }
  return std::nullopt;
}

std::optional<DType> parse_safetensors_dtype(std::string_view name) {
  for (const Row& row : kRows) {
    if (row.safetensors_name == name) {
      return row.dtype;
    }
  }
  return std::nullopt;
}

}  // namespace muster
