// SPDX-License-Identifier: Apache-2.0
// Bytes that a peer should not have sent, written field by field.
#include "tests/unit/wire/message_samples.h"

#include <muster/wire/codec.h>

#include <gtest/gtest.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace muster::wire {
namespace {

// Protobuf's wire format by hand.
class Fields {
 public:
  Fields& varint(std::uint32_t field, std::uint64_t value) {
    raw_varint(field << 3U);
    raw_varint(value);
    return *this;
  }

  Fields& fixed64(std::uint32_t field, std::uint64_t value) {
    raw_varint((field << 3U) | 1U);
    for (unsigned i = 0; i < 8; ++i) {
      bytes_ += static_cast<char>((value >> (8 * i)) & 0xFFU);
    }
    return *this;
  }

  Fields& bytes(std::uint32_t field, const std::string& value) {
    raw_varint((field << 3U) | 2U);
    raw_varint(value.size());
    bytes_ += value;
    return *this;
  }

  Fields& message(std::uint32_t field, const Fields& value) { return bytes(field, value.bytes_); }

  [[nodiscard]] Expected<Message> decode() const {
    return wire::decode(std::as_bytes(std::span{bytes_.data(), bytes_.size()}));
  }

 private:
  void raw_varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7U) {
      bytes_ += static_cast<char>((value & 0x7FU) | 0x80U);
    }
    bytes_ += static_cast<char>(value);
  }

  std::string bytes_;
};

Fields metric(std::uint64_t id, std::uint64_t kind, std::uint64_t scope) {
  return Fields{}.varint(1, id).bytes(2, "m").varint(4, kind).varint(5, scope);
}

Fields event_with_severity(std::uint64_t severity) {
  return Fields{}.bytes(2, "finding").varint(3, severity);
}

void expect_code(const Fields& envelope, StatusCode code, const std::string& words) {
  const auto received = envelope.decode();
  ASSERT_FALSE(received.ok());
  EXPECT_EQ(received.status().code(), code) << received.status().to_string();
  EXPECT_NE(received.status().message().find(words), std::string::npos)
      << received.status().to_string();
}

TEST(Decode, ReadsHandWrittenFields) {
  const auto received = Fields{}.message(3, Fields{}.message(1, metric(0, 1, 2))).decode();
  ASSERT_TRUE(received.ok()) << received.status().to_string();
  EXPECT_EQ(std::get<SchemaMessage>(*received).schema.metrics.at(0).scope, MetricScope::kRank);
}

TEST(Decode, RefusesAnEmptyFrame) {
  expect_code(Fields{}, StatusCode::kDataLoss, "empty");
}

TEST(Decode, RefusesGarbage) {
  const std::vector<std::byte> garbage(64, std::byte{0xFF});
  EXPECT_EQ(decode(garbage).status().code(), StatusCode::kDataLoss);
}

TEST(Decode, RefusesTextThatIsNotUtf8) {
  expect_code(
      Fields{}.message(12, Fields{}.bytes(1, "\xFF")), StatusCode::kDataLoss, "not a muster.v1");
}

TEST(Decode, RefusesEveryProperPrefixOfABatch) {
  std::vector<std::byte> frame;
  ASSERT_TRUE(append_frame(sample_batch(), frame).ok());
  const auto payload = std::span{frame}.subspan(kFrameHeaderBytes);
  for (std::size_t size = 0; size < payload.size(); ++size) {
    EXPECT_EQ(decode(payload.first(size)).status().code(), StatusCode::kDataLoss) << size;
  }
}

TEST(Decode, CallsAnUnknownMemberUnimplemented) {
  expect_code(
      Fields{}.message(999, Fields{}.varint(1, 5)), StatusCode::kUnimplemented, "newer protocol");
}

TEST(Decode, IgnoresUnknownFieldsOfAKnownMessage) {
  const auto received = Fields{}.message(8, Fields{}.varint(1, 5).bytes(77, "later")).decode();
  ASSERT_TRUE(received.ok()) << received.status().to_string();
  EXPECT_EQ(std::get<Ack>(*received).seq, 5U);
}

TEST(Decode, RefusesSchemaIdsThatAreNotPositions) {
  expect_code(
      Fields{}.message(3, Fields{}.message(1, metric(1, 1, 1))), StatusCode::kDataLoss, "id 1");
}

TEST(Decode, RefusesUnspecifiedEnums) {
  const Fields no_kind = Fields{}.message(3, Fields{}.message(1, metric(0, 0, 1)));
  const Fields no_scope = Fields{}.message(3, Fields{}.message(1, metric(0, 1, 0)));
  expect_code(no_kind, StatusCode::kDataLoss, "metric kind");
  expect_code(no_scope, StatusCode::kDataLoss, "metric scope");
  expect_code(Fields{}.message(5, event_with_severity(0)), StatusCode::kDataLoss, "event severity");
  expect_code(Fields{}.message(1, Fields{}.varint(1, 1)), StatusCode::kDataLoss, "peer role");
  expect_code(Fields{}.message(9, Fields{}.varint(1, 1)), StatusCode::kDataLoss, "command kind");
  expect_code(Fields{}.message(10, Fields{}.bytes(1, "r")), StatusCode::kDataLoss, "command kind");
  expect_code(Fields{}.message(6, Fields{}.varint(2, 1)), StatusCode::kDataLoss, "command state");
}

TEST(Decode, CallsANewerEnumValueUnimplemented) {
  expect_code(
      Fields{}.message(9, Fields{}.varint(1, 1).varint(3, 99)),
      StatusCode::kUnimplemented,
      "command kind 99");
}

TEST(Decode, RefusesABatchWhoseValuesDoNotFillItsFrames) {
  const std::string two_floats(8, '\0');
  const Fields batch =
      Fields{}.varint(3, 3).bytes(4, "\x02").fixed64(5, 1).fixed64(6, 1).bytes(7, two_floats);
  expect_code(Fields{}.message(4, batch), StatusCode::kDataLoss, "2 values");
}

TEST(Decode, RefusesABatchWithAMissingTimeColumn) {
  const Fields batch = Fields{}.varint(3, 0).bytes(4, "\x02").fixed64(5, 1);
  expect_code(Fields{}.message(4, batch), StatusCode::kDataLoss, "0 monotonic times");
}

TEST(Decode, RefusesAWidthThatOverflowsWithTheFrameCount) {
  const Fields batch = Fields{}.varint(3, 0xFFFF'FFFF).bytes(4, "\x02").fixed64(5, 1).fixed64(6, 1);
  expect_code(Fields{}.message(4, batch), StatusCode::kDataLoss, "width 4294967295");
}

TEST(Decode, RefusesRepeatedEventInputs) {
  const Fields input = Fields{}.bytes(1, "x").fixed64(2, std::bit_cast<std::uint64_t>(1.0));
  const Fields event = event_with_severity(1).message(7, input).message(7, input);
  expect_code(Fields{}.message(5, event), StatusCode::kDataLoss, "'x' appears twice");
}

TEST(Decode, RefusesRepeatedEventLabels) {
  const Fields label = Fields{}.bytes(1, "rule").bytes(2, "spike");
  const Fields event = event_with_severity(1).message(8, label).message(8, label);
  expect_code(Fields{}.message(5, event), StatusCode::kDataLoss, "'rule' appears twice");
}

}  // namespace
}  // namespace muster::wire
