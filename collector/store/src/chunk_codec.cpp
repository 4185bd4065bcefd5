// SPDX-License-Identifier: Apache-2.0
#include "collector/store/src/chunk_codec.h"

#include <zstd.h>

#include <bit>
#include <cstring>

namespace muster::store {

namespace {

constexpr std::byte kAllPresent{1};
constexpr std::byte kCompressed{2};
constexpr std::byte kKnownFlags = kAllPresent | kCompressed;
constexpr std::size_t kSamplesBytesMax = kChunkSteps * sizeof(float);
constexpr int kCompressionLevel = 1;

}  // namespace

struct ChunkCodec::Contexts {
  struct Free {
    void operator()(ZSTD_CCtx* context) const { ZSTD_freeCCtx(context); }

    void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
  };

  std::unique_ptr<ZSTD_CCtx, Free> compress{ZSTD_createCCtx()};
  std::unique_ptr<ZSTD_DCtx, Free> decompress{ZSTD_createDCtx()};
};

ChunkCodec::ChunkCodec()
    : contexts_(std::make_unique<Contexts>()),
      planes_(kSamplesBytesMax),
      encoded_(1 + kPresenceBytes + ZSTD_COMPRESSBOUND(kSamplesBytesMax)) {}

ChunkCodec::~ChunkCodec() = default;

void append_presence(const std::bitset<kChunkSteps>& present, std::vector<std::byte>& bytes) {
  const std::size_t at = bytes.size();
  bytes.resize(at + kPresenceBytes);
  for (std::size_t i = 0; i < kChunkSteps; ++i) {
    if (present[i]) {
      bytes[at + i / 8] |= std::byte{1} << (i % 8);
    }
  }
}

std::bitset<kChunkSteps> read_presence(std::span<const std::byte, kPresenceBytes> bytes) {
  std::bitset<kChunkSteps> present;
  for (std::size_t i = 0; i < kChunkSteps; ++i) {
    present[i] = (bytes[i / 8] >> (i % 8) & std::byte{1}) != std::byte{0};
  }
  return present;
}

std::span<const std::byte> ChunkCodec::encode(const Chunk& chunk) {
  encoded_.clear();
  encoded_.push_back(std::byte{0});
  if (chunk.present.all()) {
    encoded_[0] |= kAllPresent;
  } else {
    append_presence(chunk.present, encoded_);
  }
  const bool all = chunk.present.all();
  const std::size_t count = chunk.present.count();
  std::size_t packed = 0;
  for (std::size_t i = 0; i < kChunkSteps; ++i) {
    if (all || chunk.present[i]) {
      packed_[packed++] = std::bit_cast<std::uint32_t>(chunk.values[i]);
    }
  }
  for (std::size_t plane = 0; plane < sizeof(float); ++plane) {
    for (std::size_t i = 0; i < count; ++i) {
      planes_[plane * count + i] = static_cast<std::byte>(packed_[i] >> (8 * plane) & 0xffU);
    }
  }
  const std::size_t raw_bytes = count * sizeof(float);
  const std::size_t header = encoded_.size();
  encoded_.resize(header + ZSTD_compressBound(raw_bytes));
  const std::size_t size = ZSTD_compressCCtx(
      contexts_->compress.get(),
      encoded_.data() + header,
      encoded_.size() - header,
      planes_.data(),
      raw_bytes,
      kCompressionLevel);
  if (ZSTD_isError(size) == 0 && size < raw_bytes) {
    encoded_[0] |= kCompressed;
    encoded_.resize(header + size);
    return encoded_;
  }
  encoded_.resize(header + raw_bytes);
  std::memcpy(encoded_.data() + header, packed_.data(), raw_bytes);
  return encoded_;
}

Status ChunkCodec::decode(std::span<const std::byte> bytes, Chunk& chunk) {
  if (bytes.empty() || (bytes[0] & ~kKnownFlags) != std::byte{0}) {
    return data_loss("a chunk starts with unknown flags");
  }
  const std::byte flags = bytes[0];
  bytes = bytes.subspan(1);
  chunk.present.set();
  if ((flags & kAllPresent) == std::byte{0}) {
    if (bytes.size() < kPresenceBytes) {
      return data_loss("a chunk ends within its presence bits");
    }
    chunk.present = read_presence(bytes.first<kPresenceBytes>());
    bytes = bytes.subspan(kPresenceBytes);
  }
  const std::size_t count = chunk.present.count();
  const bool compressed = (flags & kCompressed) != std::byte{0};
  if (compressed) {
    const std::size_t size = ZSTD_decompressDCtx(
        contexts_->decompress.get(), planes_.data(), planes_.size(), bytes.data(), bytes.size());
    if (ZSTD_isError(size) != 0 || size != count * sizeof(float)) {
      return data_loss("the samples of a chunk do not decompress");
    }
  } else if (bytes.size() != count * sizeof(float)) {
    return data_loss("a chunk has another number of samples than presence bits");
  }
  std::size_t at = 0;
  for (std::size_t i = 0; i < kChunkSteps; ++i) {
    if (!chunk.present[i]) {
      continue;
    }
    auto* value = static_cast<std::byte*>(static_cast<void*>(&chunk.values[i]));
    for (std::size_t plane = 0; plane < sizeof(float); ++plane) {
      value[plane] = compressed ? planes_[plane * count + at] : bytes[at * sizeof(float) + plane];
    }
    ++at;
  }
  return {};
}

}  // namespace muster::store
