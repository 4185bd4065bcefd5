// SPDX-License-Identifier: Apache-2.0
// MANIFEST.json and rank records: every input is read as both. A manifest is read as it is and with
// its own hash set right, which no mutation finds by itself.
#include "checkpoint/src/manifest.h"
#include "checkpoint/src/rank_record.h"

#include <muster/common/check.h>
#include <muster/common/hash.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace {

using namespace muster;
using namespace muster::checkpoint;

std::string with_own_hash(std::string text) {
  constexpr std::string_view kKey = "\"manifest_xxh3_128\": \"";
  constexpr std::size_t kDigits = 32;
  const std::size_t key = text.rfind(kKey);
  if (key == std::string::npos || text.size() - key < kKey.size() + kDigits) {
    return text;
  }
  const std::size_t slot = key + kKey.size();
  text.replace(slot, kDigits, kDigits, '0');
  return text.replace(slot, kDigits, to_hex(hash128(text)));
}

void check_manifest(std::string_view text) {
  const auto manifest = decode_manifest(text);
  if (!manifest.ok()) {
    MUSTER_CHECK(!manifest.status().message().empty(), "a refusal names its reason");
    return;
  }
  const std::string once = encode_manifest(*manifest);
  const auto again = decode_manifest(once);
  MUSTER_CHECK(again.ok(), again.status().to_string());
  MUSTER_CHECK(encode_manifest(*again) == once, "a manifest survives a round trip");
}

void check_record(std::string_view text) {
  const auto record = decode_record(text);
  if (!record.ok()) {
    MUSTER_CHECK(!record.status().message().empty(), "a refusal names its reason");
    return;
  }
  const auto once = encode_record(*record);
  MUSTER_CHECK(once.ok(), once.status().to_string());
  const auto again = decode_record(*once);
  MUSTER_CHECK(again.ok(), again.status().to_string());
  MUSTER_CHECK(encode_record(*again).value() == *once, "a rank record survives a round trip");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(data, data + size);
  check_manifest(text);
  check_manifest(with_own_hash(text));
  check_record(text);
  return 0;
}
