// SPDX-License-Identifier: Apache-2.0
// 1024 consecutive steps of one series as one blob.
//
// Format, little-endian: one byte of flags, then, unless every step is present, 128 bytes of
// presence (bit i of byte i / 8 is step i), then the present floats in step order: raw, or their
// four byte planes one after the other and compressed by zstd when that is smaller. Every bit of
// every float survives, NaN payloads included.
#pragma once

#include "collector/store/src/keys.h"

#include <muster/common/expected.h>

#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace muster::store {

struct Chunk {
  std::array<float, kChunkSteps> values{};  // Only where present.
  std::bitset<kChunkSteps> present;
};

// Not thread-safe: keeps its compressor's memory between calls.
class ChunkCodec {
 public:
  ChunkCodec();
  ~ChunkCodec();
  ChunkCodec(const ChunkCodec&) = delete;
  ChunkCodec& operator=(const ChunkCodec&) = delete;
  ChunkCodec(ChunkCodec&&) = delete;
  ChunkCodec& operator=(ChunkCodec&&) = delete;

  // Valid until the next call.
  [[nodiscard]] std::span<const std::byte> encode(const Chunk& chunk);
  // kDataLoss if the bytes are not a valid chunk. `chunk` is overwritten.
  [[nodiscard]] Status decode(std::span<const std::byte> bytes, Chunk& chunk);

 private:
  struct Contexts;

  std::unique_ptr<Contexts> contexts_;
  std::array<std::uint32_t, kChunkSteps> packed_{};
  std::vector<std::byte> planes_;
  std::vector<std::byte> encoded_;
};

inline constexpr std::size_t kPresenceBytes = kChunkSteps / 8;

// The presence bits of the format above.
void append_presence(const std::bitset<kChunkSteps>& present, std::vector<std::byte>& bytes);
[[nodiscard]] std::bitset<kChunkSteps> read_presence(
    std::span<const std::byte, kPresenceBytes> bytes);

}  // namespace muster::store
