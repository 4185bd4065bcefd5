// SPDX-License-Identifier: Apache-2.0
// The safetensors header. An input is the size of the file, 8 bytes little-endian, then the file.
#include "checkpoint/src/safetensors.h"

#include <muster/common/check.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace {

using namespace muster;
using namespace muster::checkpoint;

// Empty tensors share an offset, so their order in the file is not fixed.
std::vector<TensorEntry> by_name(std::vector<TensorEntry> tensors) {
  std::sort(
      tensors.begin(), tensors.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return tensors;
}

void check_round_trip(const SafetensorsHeader& header) {
  const auto encoded = encode_header(header.tensors, header.metadata);
  MUSTER_CHECK(encoded.ok(), encoded.status().to_string());
  const std::uint64_t data = header.tensors.empty() ? 0 : header.tensors.back().end;
  const std::uint64_t file_bytes = encoded->size() + data;
  const auto length =
      decode_header_length(std::as_bytes(std::span{encoded->data(), encoded->size()}), file_bytes);
  MUSTER_CHECK(length.ok(), length.status().to_string());
  const auto again =
      decode_header(std::string_view{*encoded}.substr(kHeaderLengthBytes, *length), file_bytes);
  MUSTER_CHECK(again.ok(), again.status().to_string());
  MUSTER_CHECK(by_name(again->tensors) == by_name(header.tensors), "tensors survive a round trip");
  MUSTER_CHECK(again->metadata == header.metadata, "metadata survives a round trip");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::uint64_t file_bytes = 0;
  if (size < sizeof(file_bytes)) {
    return 0;
  }
  std::memcpy(&file_bytes, data, sizeof(file_bytes));
  const auto file = std::as_bytes(std::span{data, size}.subspan(sizeof(file_bytes)));
  const auto length = decode_header_length(file, file_bytes);
  if (!length.ok()) {
    MUSTER_CHECK(!length.status().message().empty(), "a refusal names its reason");
    return 0;
  }
  std::string text(file.size() - kHeaderLengthBytes, '\0');
  std::transform(file.begin() + kHeaderLengthBytes, file.end(), text.begin(), [](std::byte byte) {
    return static_cast<char>(byte);
  });
  const auto header = decode_header(std::string_view{text}.substr(0, *length), file_bytes);
  if (header.ok()) {
    check_round_trip(*header);
  } else {
    MUSTER_CHECK(!header.status().message().empty(), "a refusal names its reason");
  }
  return 0;
}
