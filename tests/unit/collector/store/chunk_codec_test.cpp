// SPDX-License-Identifier: Apache-2.0
#include "collector/store/src/chunk_codec.h"

#include <muster/common/random.h>

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace muster::store {

namespace {

using Fill = float (*)(Random&);

float any_bits(Random& random) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(random.next_u64()));
}

float smooth(Random& random) {
  return static_cast<float>(2.0 + 0.01 * random.normal());
}

Chunk make_chunk(Random& random, Fill fill, std::uint64_t present_percent) {
  Chunk chunk;
  for (std::size_t i = 0; i < chunk.values.size(); ++i) {
    if (random.below(100) < present_percent) {
      chunk.values[i] = fill(random);
      chunk.present.set(i);
    }
  }
  return chunk;
}

void expect_same(const Chunk& a, const Chunk& b) {
  ASSERT_EQ(a.present, b.present);
  for (std::size_t i = 0; i < a.values.size(); ++i) {
    if (a.present[i]) {
      ASSERT_EQ(
          std::bit_cast<std::uint32_t>(a.values[i]), std::bit_cast<std::uint32_t>(b.values[i]))
          << "at " << i;
    }
  }
}

}  // namespace

TEST(ChunkCodec, EveryBitSurvives) {
  constexpr std::uint64_t kSeed = 31;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  Random random{kSeed};
  ChunkCodec codec;
  for (const Fill fill : {any_bits, smooth}) {
    for (const std::uint64_t percent : {0U, 1U, 50U, 99U, 100U}) {
      const Chunk chunk = make_chunk(random, fill, percent);
      const auto bytes = codec.encode(chunk);
      Chunk decoded;
      const Status status = codec.decode({bytes.begin(), bytes.end()}, decoded);
      ASSERT_TRUE(status.ok()) << status.to_string();
      expect_same(chunk, decoded);
    }
  }
}

TEST(ChunkCodec, ConstantSeriesIsSmall) {
  Chunk chunk;
  chunk.values.fill(0.1F);
  chunk.present.set();
  ChunkCodec codec;
  EXPECT_LT(codec.encode(chunk).size(), 64U);
}

TEST(ChunkCodec, NoiseNeverGrowsByMoreThanItsHeader) {
  Random random{32};
  ChunkCodec codec;
  const Chunk chunk = make_chunk(random, any_bits, 100);
  EXPECT_LE(codec.encode(chunk).size(), sizeof(float) * kChunkSteps + 1);
}

TEST(ChunkCodec, DamagedBytesAreRefusedNotBelieved) {
  constexpr std::uint64_t kSeed = 33;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  Random random{kSeed};
  ChunkCodec codec;
  Chunk out;
  EXPECT_EQ(codec.decode({}, out).code(), StatusCode::kDataLoss);
  for (const std::uint64_t percent : {50U, 100U}) {
    const auto encoded = codec.encode(make_chunk(random, smooth, percent));
    const std::vector<std::byte> good(encoded.begin(), encoded.end());
    for (std::size_t size = 0; size < good.size(); size += 7) {
      EXPECT_FALSE(codec.decode(std::span{good}.first(size), out).ok()) << size;
    }
    auto flags = good;
    flags[0] = std::byte{0x80};
    EXPECT_FALSE(codec.decode(flags, out).ok());
    for (int round = 0; round < 200; ++round) {
      auto bad = good;
      bad[random.below(bad.size())] ^= static_cast<std::byte>(1 + random.below(255));
      // Refused or decoded to something; never out of bounds.
      static_cast<void>(codec.decode(bad, out));
    }
  }
}

}  // namespace muster::store
