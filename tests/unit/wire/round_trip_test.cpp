// SPDX-License-Identifier: Apache-2.0
// Every message comes back as it was sent.
#include "tests/unit/wire/message_samples.h"

#include <muster/wire/codec.h>

#include <gtest/gtest.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace muster::wire {
namespace {

Message travel(const Message& message) {
  std::vector<std::byte> frame;
  const Status sent = append_frame(message, frame);
  EXPECT_TRUE(sent.ok()) << sent.to_string();
  Expected<Message> received = decode(std::span{frame}.subspan(kFrameHeaderBytes));
  EXPECT_TRUE(received.ok()) << received.status().to_string();
  return std::move(received).value();
}

// NaN compares unequal to itself: frames are compared by their bits.
void expect_same_frames(const SampleBatch& sent, const SampleBatch& received) {
  EXPECT_EQ(received.first_seq, sent.first_seq);
  EXPECT_EQ(received.schema_hash, sent.schema_hash);
  ASSERT_EQ(received.frames.size(), sent.frames.size());
  for (std::size_t i = 0; i < sent.frames.size(); ++i) {
    EXPECT_EQ(received.frames[i].step, sent.frames[i].step);
    EXPECT_EQ(received.frames[i].wall_unix_ns, sent.frames[i].wall_unix_ns);
    EXPECT_EQ(received.frames[i].monotonic_ns, sent.frames[i].monotonic_ns);
    ASSERT_EQ(received.frames[i].values.size(), sent.frames[i].values.size());
    for (std::size_t column = 0; column < sent.frames[i].values.size(); ++column) {
      EXPECT_EQ(
          std::bit_cast<std::uint32_t>(received.frames[i].values[column]),
          std::bit_cast<std::uint32_t>(sent.frames[i].values[column]))
          << "frame " << i << " column " << column;
    }
  }
}

TEST(RoundTrip, KeepsEveryFieldOfEveryMessage) {
  for (const auto& [name, sent] : all_messages()) {
    SCOPED_TRACE(name);
    const Message received = travel(sent);
    ASSERT_EQ(received.index(), sent.index());
    std::visit(
        [&](const auto& original) {
          using Content = std::decay_t<decltype(original)>;
          if constexpr (std::is_same_v<Content, SampleBatch>) {
            expect_same_frames(original, std::get<SampleBatch>(received));
          } else {
            EXPECT_EQ(std::get<Content>(received), original);
          }
        },
        sent);
  }
}

TEST(RoundTrip, SamplesCoverEveryKindOfMessage) {
  const auto messages = all_messages();
  ASSERT_EQ(messages.size(), std::variant_size_v<Message>);
  for (std::size_t i = 0; i < messages.size(); ++i) {
    EXPECT_EQ(messages[i].second.index(), i) << messages[i].first;
  }
}

TEST(RoundTrip, KeepsNegativeZeroOfEventInputs) {
  Event event;
  event.kind = event_kind::kAction;
  event.inputs = {{"x", -0.0}};
  const Message received = travel(EventMessage{1, event});
  const double value = std::get<EventMessage>(received).event.inputs.at("x");
  EXPECT_EQ(std::bit_cast<std::uint64_t>(value), std::bit_cast<std::uint64_t>(-0.0));
}

TEST(RoundTrip, KeepsDefaultsOfEveryMessage) {
  EXPECT_EQ(std::get<Hello>(travel(Hello{})), Hello{});
  EXPECT_EQ(std::get<Heartbeat>(travel(Heartbeat{})), Heartbeat{});
  EXPECT_EQ(std::get<Goodbye>(travel(Goodbye{"", false})), (Goodbye{"", false}));
  EXPECT_EQ(std::get<CommandRequest>(travel(CommandRequest{})), CommandRequest{});
  expect_same_frames(SampleBatch{}, std::get<SampleBatch>(travel(SampleBatch{})));
}

TEST(RoundTrip, KeepsFramesWithoutValues) {
  SampleBatch batch;
  batch.frames = {{1, 2, 3, {}}, {2, 3, 4, {}}};
  expect_same_frames(batch, std::get<SampleBatch>(travel(batch)));
}

TEST(RoundTrip, ReplacesBytesThatAreNotUtf8) {
  const Message received = travel(Goodbye{"file \xC3\x28 \xFF", false});
  EXPECT_EQ(std::get<Goodbye>(received).reason, "file ?( ?");
}

TEST(RoundTrip, KeepsArbitraryBytesOfTheToken) {
  Hello hello;
  hello.token = std::string{"\x00\xFF\xC3", 3};
  EXPECT_EQ(std::get<Hello>(travel(hello)).token, hello.token);
}

TEST(Encode, RefusesFramesOfDifferentWidthAndLeavesTheBufferAlone) {
  SampleBatch batch;
  batch.frames = {{1, 0, 0, {1.0F}}, {2, 0, 0, {1.0F, 2.0F}}};
  std::vector<std::byte> out(3);
  const Status status = append_frame(batch, out);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("width 1"), std::string::npos) << status.to_string();
  EXPECT_EQ(out.size(), 3U);
}

TEST(Encode, RefusesSchemaIdsThatAreNotPositions) {
  SchemaMessage message{sample_schema()};
  message.schema.metrics[1].id = 5;
  std::vector<std::byte> out;
  EXPECT_EQ(append_frame(message, out).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(out.empty());
}

TEST(Encode, RefusesPayloadsAboveTheCap) {
  Goodbye message;
  message.reason.assign(kFrameBytesMax, 'x');
  std::vector<std::byte> out;
  EXPECT_EQ(append_frame(message, out).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(out.empty());
}

TEST(Encode, CostsFourBytesPerFloatAndLittleMore) {
  SampleBatch batch;
  batch.schema_hash = 1;
  for (std::int64_t step = 0; step < 16; ++step) {
    batch.frames.push_back({step, 1'700'000'000'000'000'000, 1, std::vector<float>(200, 0.5F)});
  }
  std::vector<std::byte> out;
  ASSERT_TRUE(append_frame(batch, out).ok());
  // Per frame: 200 floats and two fixed64 times, one byte of step; per batch: less than 64 bytes.
  EXPECT_LE(out.size(), std::size_t{16} * (200 * 4 + 2 * 8 + 1) + 64);
}

}  // namespace
}  // namespace muster::wire
