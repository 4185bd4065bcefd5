// SPDX-License-Identifier: Apache-2.0
// The decoder against bytes that were valid once: it may refuse them, never crash, and whatever it
// accepts must survive another trip.
#include "tests/unit/wire/message_samples.h"

#include <muster/common/random.h>
#include <muster/wire/codec.h>

#include <google/protobuf/stubs/logging.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <span>
#include <string>
#include <vector>

namespace muster::wire {
namespace {

constexpr std::uint64_t kDefaultSeed = 20'240'611;
constexpr int kRoundsMax = 200'000;
constexpr std::chrono::seconds kTimeMax{3};

std::uint64_t seed() {
  const char* text = std::getenv("MUSTER_FUZZ_SEED");
  const std::uint64_t value = text == nullptr ? kDefaultSeed : std::stoull(text);
  std::cout << "seed " << value << " (MUSTER_FUZZ_SEED repeats it)\n";
  return value;
}

std::vector<std::vector<std::byte>> corpus() {
  std::vector<std::vector<std::byte>> frames;
  for (const auto& [name, message] : all_messages()) {
    frames.emplace_back();
    EXPECT_TRUE(append_frame(message, frames.back()).ok()) << name;
  }
  return frames;
}

void mutate(std::vector<std::byte>& bytes, Random& random) {
  const auto position = [&] { return static_cast<std::ptrdiff_t>(random.below(bytes.size())); };
  switch (bytes.empty() ? 2 : random.below(5)) {
    case 0:
      bytes[static_cast<std::size_t>(position())] ^= std::byte{1} << random.below(8);
      break;
    case 1:
      bytes[static_cast<std::size_t>(position())] = static_cast<std::byte>(random.below(256));
      break;
    case 2:
      bytes.push_back(static_cast<std::byte>(random.below(256)));
      break;
    case 3:
      bytes.erase(bytes.begin() + position(), bytes.end());
      break;
    default:
      // A stretch again: repeated fields, doubled lengths.
      const auto begin = position();
      const std::vector<std::byte> stretch(bytes.begin() + begin, bytes.end());
      bytes.insert(bytes.begin() + begin, stretch.begin(), stretch.end());
      break;
  }
}

std::vector<std::byte> mutated_payload(
    const std::vector<std::vector<std::byte>>& frames, Random& random) {
  const auto& frame = frames[random.below(frames.size())];
  std::vector<std::byte> payload(frame.begin() + kFrameHeaderBytes, frame.end());
  const std::uint64_t mutations = 1 + random.below(4);
  for (std::uint64_t i = 0; i < mutations; ++i) {
    mutate(payload, random);
  }
  return payload;
}

// Protobuf reports every text that is not UTF-8 on stderr; here that is thousands of lines.
class WireFuzz : public ::testing::Test {
 private:
  google::protobuf::LogSilencer silencer_;
};

bool in_time(std::chrono::steady_clock::time_point begin) {
  return std::chrono::steady_clock::now() - begin < kTimeMax;
}

TEST_F(WireFuzz, DecoderRefusesOrAcceptsButNeverBreaks) {
  Random random{seed()};
  const auto frames = corpus();
  const auto begin = std::chrono::steady_clock::now();
  int accepted = 0;
  int refused = 0;
  for (int round = 0; round < kRoundsMax && in_time(begin); ++round) {
    const auto payload = mutated_payload(frames, random);
    const auto first = decode(payload);
    if (!first.ok()) {
      const StatusCode code = first.status().code();
      ASSERT_TRUE(code == StatusCode::kDataLoss || code == StatusCode::kUnimplemented);
      ++refused;
      continue;
    }
    ++accepted;
    std::vector<std::byte> once;
    ASSERT_TRUE(append_frame(*first, once).ok());
    const auto second = decode(std::span{once}.subspan(kFrameHeaderBytes));
    ASSERT_TRUE(second.ok()) << second.status().to_string();
    std::vector<std::byte> twice;
    ASSERT_TRUE(append_frame(*second, twice).ok());
    ASSERT_EQ(once, twice);
  }
  std::cout << accepted << " accepted, " << refused << " refused\n";
  EXPECT_GT(accepted, 100);
  EXPECT_GT(refused, 100);
}

TEST_F(WireFuzz, FrameReaderEndsOnDamagedStreams) {
  Random random{seed(), 1};
  const auto frames = corpus();
  const auto begin = std::chrono::steady_clock::now();
  for (int round = 0; round < kRoundsMax / 20 && in_time(begin); ++round) {
    std::vector<std::byte> stream;
    for (const auto& frame : frames) {
      stream.insert(stream.end(), frame.begin(), frame.end());
    }
    mutate(stream, random);
    FrameReader reader;
    std::size_t messages = 0;
    for (std::size_t at = 0; at < stream.size();) {
      const std::size_t size = std::min(stream.size() - at, std::size_t{1} + random.below(300));
      reader.feed(std::span{stream}.subspan(at, size));
      at += size;
      auto received = reader.next();
      for (; received.ok() && received->has_value(); received = reader.next()) {
        ++messages;
      }
      if (!received.ok() && received.status().code() != StatusCode::kUnimplemented) {
        break;
      }
      ASSERT_LE(reader.buffered_bytes(), stream.size());
    }
    ASSERT_LE(messages, 2 * frames.size());
  }
}

}  // namespace
}  // namespace muster::wire
