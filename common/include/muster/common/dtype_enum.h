// SPDX-License-Identifier: Apache-2.0
// DType and its sizes, without the standard headers that dtype.h needs: loops that are compiled
// once per instruction set include this one.
#pragma once

#include <cstddef>
#include <cstdint>

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

}  // namespace muster
