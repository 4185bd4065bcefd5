// SPDX-License-Identifier: Apache-2.0
#include <muster/wire/codec.h>

#include <algorithm>
#include <string>

namespace muster::wire {

namespace {

std::uint32_t read_length(std::span<const std::byte, kFrameHeaderBytes> header) {
  std::uint32_t length = 0;
  for (std::size_t i = 0; i < kFrameHeaderBytes; ++i) {
    length |= std::to_integer<std::uint32_t>(header[i]) << (8 * i);
  }
  return length;
}

}  // namespace

Expected<std::size_t> payload_size(
    std::span<const std::byte, kFrameHeaderBytes> header, std::size_t payload_bytes_max) {
  const std::size_t length = read_length(header);
  if (length > payload_bytes_max) {
    return invalid_argument(
        "a frame must have at most ", payload_bytes_max, " bytes, got ", length);
  }
  return length;
}

void FrameReader::feed(std::span<const std::byte> bytes) {
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
}

void FrameReader::limit(std::size_t payload_bytes_max) {
  payload_bytes_max_ = payload_bytes_max;
}

std::size_t FrameReader::buffered_bytes() const {
  return buffer_.size() - begin_;
}

Expected<std::optional<Message>> FrameReader::next() {
  if (buffered_bytes() < kFrameHeaderBytes) {
    compact();
    return std::optional<Message>{};
  }
  const std::span<const std::byte> unread = std::span{buffer_}.subspan(begin_);
  MUSTER_ASSIGN_OR_RETURN(
      const std::size_t size, payload_size(unread.first<kFrameHeaderBytes>(), payload_bytes_max_));
  if (unread.size() - kFrameHeaderBytes < size) {
    compact();
    return std::optional<Message>{};
  }
  // Consumed before decoding: an unknown message is skipped and the stream continues.
  begin_ += kFrameHeaderBytes + size;
  MUSTER_ASSIGN_OR_RETURN(Message message, decode(unread.subspan(kFrameHeaderBytes, size)));
  return std::optional<Message>{std::move(message)};
}

// Only while waiting for more bytes, so that a burst of small frames is not moved once per frame:
// each byte is moved at most once per feed.
void FrameReader::compact() {
  if (begin_ == 0) {
    return;
  }
  buffer_.erase(buffer_.begin(), buffer_.begin() + static_cast<std::ptrdiff_t>(begin_));
  begin_ = 0;
}

}  // namespace muster::wire
