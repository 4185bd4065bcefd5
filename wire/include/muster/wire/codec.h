// SPDX-License-Identifier: Apache-2.0
// Frames on a byte stream: u32 little-endian payload length, then one muster.v1.Envelope.
//
// A length above kFrameBytesMax is refused before anything is allocated. Unknown fields are kept by
// Protobuf and ignored by us; an envelope with an unknown message decodes to kUnimplemented, which
// a session counts and skips.
#pragma once

#include <muster/common/expected.h>
#include <muster/wire/messages.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace muster::wire {

inline constexpr std::size_t kFrameHeaderBytes = 4;
inline constexpr std::size_t kFrameBytesMax = std::size_t{8} << 20;
// The cap for a peer that is not admitted yet: a Hello is small.
inline constexpr std::size_t kHelloBytesMax = std::size_t{64} << 10;

// Appends header and payload to `out`. kInvalidArgument, and `out` as it was, when the payload
// would exceed the cap or the message breaks an invariant that `decode` checks. Bytes of a text
// that are not UTF-8 travel as '?'.
[[nodiscard]] Status append_frame(const Message& message, std::vector<std::byte>& out);

// Returns the payload length announced by a header, checked against the cap: kInvalidArgument names
// both.
[[nodiscard]] Expected<std::size_t> payload_size(
    std::span<const std::byte, kFrameHeaderBytes> header,
    std::size_t payload_bytes_max = kFrameBytesMax);

// Decodes one payload. kDataLoss for bytes that do not parse or break an invariant (schema ids not
// 0..n-1, frame width that differs inside a batch, unspecified enum). kUnimplemented for a message
// or an enum value of a newer protocol.
[[nodiscard]] Expected<Message> decode(std::span<const std::byte> payload);

// Cuts frames out of a growing buffer; for readers that receive in bulk.
class FrameReader {
 public:
  // Appends received bytes.
  void feed(std::span<const std::byte> bytes);

  // Returns the next complete message, or nullopt if more bytes are needed. kUnimplemented means
  // that a frame was skipped and the stream continues. After any other error the stream is unusable
  // and must be closed.
  [[nodiscard]] Expected<std::optional<Message>> next();

  // Caps the frames not yet returned; kFrameBytesMax from the start.
  void limit(std::size_t payload_bytes_max);

  // Bytes received and not yet returned.
  [[nodiscard]] std::size_t buffered_bytes() const;

 private:
  void compact();

  std::vector<std::byte> buffer_;
  std::size_t begin_{0};
  std::size_t payload_bytes_max_{kFrameBytesMax};
};

}  // namespace muster::wire
