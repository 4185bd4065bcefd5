// SPDX-License-Identifier: Apache-2.0
// The maps of an event as blobs: for each entry a u32 length and the key, then an f64, or a u32
// length and the text; little-endian. Doubles keep every bit, which SQLite's REAL does not do for
// NaN.
#pragma once

#include <muster/common/expected.h>

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace muster::store {

[[nodiscard]] std::vector<std::byte> encode_map(const std::map<std::string, double>& map);
[[nodiscard]] std::vector<std::byte> encode_map(const std::map<std::string, std::string>& map);

// kDataLoss when the bytes are no such map.
[[nodiscard]] Expected<std::map<std::string, double>> decode_number_map(
    std::span<const std::byte> bytes);
[[nodiscard]] Expected<std::map<std::string, std::string>> decode_text_map(
    std::span<const std::byte> bytes);

}  // namespace muster::store
