// Frames on a byte stream: u32 little-endian payload length, then one muster.v1.Envelope.
//
// A length above kFrameBytesMax is refused before anything is allocated. Unknown fields are kept by
// Protobuf and ignored by us; an envelope with an unknown message decodes to kUnimplemented, which a
// session counts and skips.
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

// Appends header and payload to `out`. kInvalidArgument when the payload would exceed the cap.
[[nodiscard]] Status append_frame(const Message& message, std::vector<std::byte>& out);

// The payload length announced by a header, checked against the cap: kInvalidArgument names both.
[[nodiscard]] Expected<std::size_t> payload_size(std::span<const std::byte, kFrameHeaderBytes> header);

// One payload. kDataLoss for bytes that do not parse or break an invariant (schema ids not 0..n-1,
// frame width that differs inside a batch, unspecified enum).
[[nodiscard]] Expected<Message> decode(std::span<const std::byte> payload);

// Cuts frames out of a growing buffer; for readers that receive in bulk.
class FrameReader {
 public:
  // Appends received bytes.
  void feed(std::span<const std::byte> bytes);

  // The next complete message; nullopt when more bytes are needed. After an error the stream is
  // unusable and must be closed.
  [[nodiscard]] Expected<std::optional<Message>> next();

 private:
  std::vector<std::byte> buffer_;
  std::size_t begin_{0};
};

}  // namespace muster::wire
