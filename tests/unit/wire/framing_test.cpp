// SPDX-License-Identifier: Apache-2.0
// Frames on a stream: the cap, slow and bulk arrival, what ends a stream and what does not.
#include "tests/unit/wire/largest_allocation.h"
#include "tests/unit/wire/message_samples.h"

#include <muster/wire/codec.h>

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace muster::wire {
namespace {

std::array<std::byte, kFrameHeaderBytes> header_for(std::uint32_t length) {
  std::array<std::byte, kFrameHeaderBytes> header{};
  for (std::size_t i = 0; i < header.size(); ++i) {
    header[i] = static_cast<std::byte>((length >> (8 * i)) & 0xFFU);
  }
  return header;
}

std::vector<std::byte> stream_of_all_messages() {
  std::vector<std::byte> stream;
  for (const auto& [name, message] : all_messages()) {
    EXPECT_TRUE(append_frame(message, stream).ok()) << name;
  }
  return stream;
}

// An envelope whose only field is number 999.
std::vector<std::byte> frame_of_a_newer_protocol() {
  const std::array<std::byte, 3> payload{std::byte{0xBA}, std::byte{0x3E}, std::byte{0}};
  const auto header = header_for(payload.size());
  std::vector<std::byte> frame(header.begin(), header.end());
  frame.insert(frame.end(), payload.begin(), payload.end());
  return frame;
}

TEST(PayloadSize, ReadsLittleEndian) {
  const auto size = payload_size(header_for(0x0001'0203));
  ASSERT_TRUE(size.ok());
  EXPECT_EQ(*size, 0x0001'0203U);
}

TEST(PayloadSize, AcceptsTheCapAndRefusesOneMore) {
  EXPECT_TRUE(payload_size(header_for(kFrameBytesMax)).ok());
  const auto refused = payload_size(header_for(kFrameBytesMax + 1));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(refused.status().message().find("8388609"), std::string::npos);
  EXPECT_NE(refused.status().message().find("8388608"), std::string::npos);
}

TEST(FrameReader, RefusesALengthBombFromItsHeaderAloneWithoutAllocating) {
  FrameReader reader;
  reset_largest_allocation();
  reader.feed(header_for(0xFFFF'FFFF));
  EXPECT_EQ(reader.next().status().code(), StatusCode::kInvalidArgument);
  EXPECT_LT(largest_allocation_bytes(), 4096U);
}

TEST(FrameReader, DoesNotReserveWhatALegalHeaderAnnounces) {
  FrameReader reader;
  reset_largest_allocation();
  reader.feed(header_for(kFrameBytesMax));
  ASSERT_TRUE(reader.next().ok());
  EXPECT_LT(largest_allocation_bytes(), 4096U);
}

TEST(FrameReader, HoldsItsOwnLowerLimit) {
  FrameReader reader;
  reader.limit(10);
  reader.feed(header_for(11));
  EXPECT_EQ(reader.next().status().code(), StatusCode::kInvalidArgument);
}

TEST(FrameReader, GivesEveryMessageOfABulkRead) {
  FrameReader reader;
  reader.feed(stream_of_all_messages());
  for (const auto& [name, sent] : all_messages()) {
    auto received = reader.next();
    ASSERT_TRUE(received.ok() && received->has_value()) << name;
    EXPECT_EQ((**received).index(), sent.index()) << name;
  }
  const auto end = reader.next();
  ASSERT_TRUE(end.ok());
  EXPECT_FALSE(end->has_value());
  EXPECT_EQ(reader.buffered_bytes(), 0U);
}

TEST(FrameReader, GivesEveryMessageOfAByteByByteFeed) {
  FrameReader reader;
  std::size_t received_count = 0;
  for (const std::byte byte : stream_of_all_messages()) {
    reader.feed(std::span{&byte, 1});
    auto received = reader.next();
    ASSERT_TRUE(received.ok()) << received.status().to_string();
    if (received->has_value()) {
      EXPECT_EQ((**received).index(), received_count);
      ++received_count;
    }
  }
  EXPECT_EQ(received_count, all_messages().size());
}

TEST(FrameReader, WaitsForTheRestOfATruncatedFrame) {
  std::vector<std::byte> frame;
  ASSERT_TRUE(append_frame(sample_batch(), frame).ok());
  for (std::size_t size = 0; size < frame.size(); ++size) {
    FrameReader reader;
    reader.feed(std::span{frame}.first(size));
    const auto received = reader.next();
    ASSERT_TRUE(received.ok()) << size;
    EXPECT_FALSE(received->has_value()) << size;
  }
}

TEST(FrameReader, ForgetsConsumedBytes) {
  std::vector<std::byte> frame;
  ASSERT_TRUE(append_frame(sample_batch(), frame).ok());
  FrameReader reader;
  reset_largest_allocation();
  for (int i = 0; i < 10'000; ++i) {
    reader.feed(frame);
    auto received = reader.next();
    ASSERT_TRUE(received.ok() && received->has_value());
    received = reader.next();
    ASSERT_TRUE(received.ok() && !received->has_value());
  }
  EXPECT_LT(largest_allocation_bytes(), 16 * frame.size());
}

TEST(FrameReader, SkipsAMessageOfANewerProtocolAndGoesOn) {
  FrameReader reader;
  reader.feed(frame_of_a_newer_protocol());
  std::vector<std::byte> frame;
  ASSERT_TRUE(append_frame(Ack{5}, frame).ok());
  reader.feed(frame);
  EXPECT_EQ(reader.next().status().code(), StatusCode::kUnimplemented);
  const auto received = reader.next();
  ASSERT_TRUE(received.ok() && received->has_value());
  EXPECT_EQ(std::get<Ack>(**received).seq, 5U);
}

}  // namespace
}  // namespace muster::wire
