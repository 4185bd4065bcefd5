// SPDX-License-Identifier: Apache-2.0
// Protobuf frames as a peer sends them, in two pieces. Whatever is accepted survives another trip.
#include <muster/common/check.h>
#include <muster/wire/codec.h>

#include <google/protobuf/stubs/logging.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace {

using namespace muster;

void check_round_trip(const wire::Message& message) {
  std::vector<std::byte> once;
  const Status encoded = wire::append_frame(message, once);
  MUSTER_CHECK(encoded.ok(), encoded.to_string());
  const auto again = wire::decode(std::span{once}.subspan(wire::kFrameHeaderBytes));
  MUSTER_CHECK(again.ok(), again.status().to_string());
  std::vector<std::byte> twice;
  MUSTER_CHECK(wire::append_frame(*again, twice).ok(), "a decoded message encodes");
  MUSTER_CHECK(once == twice, "a message encodes to the same bytes after another trip");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const google::protobuf::LogSilencer kSilencer;  // It reports texts that are not UTF-8.
  const std::span<const std::byte> bytes = std::as_bytes(std::span{data, size});
  const std::size_t cut = size == 0 ? 0 : data[size - 1] % size;
  wire::FrameReader reader;
  for (const auto part : {bytes.first(cut), bytes.subspan(cut)}) {
    reader.feed(part);
    while (true) {
      const auto received = reader.next();
      if (received.ok() && !received->has_value()) {
        break;
      }
      if (received.ok()) {
        check_round_trip(**received);
        continue;
      }
      MUSTER_CHECK(!received.status().message().empty(), "a refusal names its reason");
      if (received.status().code() != StatusCode::kUnimplemented) {
        return 0;
      }
    }
    MUSTER_CHECK(reader.buffered_bytes() <= size, "the reader keeps no more than it was fed");
  }
  return 0;
}
