// SPDX-License-Identifier: Apache-2.0
// The safetensors header: 8 bytes little-endian length N, N bytes of JSON, then the data section.
//
// Pure functions on bytes. The format has no content checksum; rank records carry the hashes.
#pragma once

#include <muster/common/expected.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace muster::checkpoint {

inline constexpr std::size_t kHeaderLengthBytes = 8;
inline constexpr std::uint64_t kHeaderBytesMax = 100'000'000;  // The reference reader's cap.

// Offsets are relative to the data section, `end` exclusive.
struct TensorEntry {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::uint64_t begin{0};
  std::uint64_t end{0};

  friend bool operator==(const TensorEntry&, const TensorEntry&) = default;
};

struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;  // ascending by offset
  std::map<std::string, std::string> metadata;
};

// Bits of one element; nullopt for a name that is not a safetensors dtype.
[[nodiscard]] std::optional<std::uint64_t> dtype_bits(std::string_view dtype);

// Bytes of a tensor; kInvalidArgument for an unknown dtype, a negative dimension, an overflow or a
// total that is not a whole number of bytes.
[[nodiscard]] Expected<std::uint64_t> tensor_bytes(
    std::string_view dtype, std::span<const std::int64_t> shape);

// Length field and JSON, padded with spaces so that the data section starts at a multiple of 8.
// kInvalidArgument for a name that is not UTF-8 or is "__metadata__".
[[nodiscard]] Expected<std::string> encode_header(
    std::span<const TensorEntry> tensors, const std::map<std::string, std::string>& metadata);

// N, checked against the cap and the size of the file. `bytes` holds at least 8 bytes.
[[nodiscard]] Expected<std::uint64_t> decode_header_length(
    std::span<const std::byte> bytes, std::uint64_t file_bytes);

// The JSON part. kDataLoss unless all holds: no duplicate key; known dtypes; sizes that match shape
// and dtype; offsets that start at 0 and leave neither hole nor overlap; 8 + N + data ==
// file_bytes.
[[nodiscard]] Expected<SafetensorsHeader> decode_header(
    std::string_view json, std::uint64_t file_bytes);

}  // namespace muster::checkpoint
