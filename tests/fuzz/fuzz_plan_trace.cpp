// SPDX-License-Identifier: Apache-2.0
// Traces of expert plans, read as they are and with their hashes set right.
#include "parallel/src/experts/trace/format.h"

#include <muster/common/check.h>
#include <muster/common/hash.h>
#include <muster/parallel/experts/trace.h>

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

namespace {

using namespace muster;
using namespace muster::parallel;

constexpr std::size_t kHashBytes = 8;

// Walks over the header and the records by their lengths and corrects the hash of each.
void set_hashes(std::span<std::byte> bytes) {
  std::size_t length_at = kEpTraceMagic.size() + sizeof(kEpTraceVersion);
  while (bytes.size() >= length_at + sizeof(std::uint32_t)) {
    std::uint32_t length = 0;
    std::memcpy(&length, bytes.data() + length_at, sizeof(length));
    if (length < kEpTracePrefixBytes + kHashBytes || length > bytes.size()) {
      return;
    }
    const std::uint64_t hash = hash64(bytes.first(length - kHashBytes));
    std::memcpy(bytes.data() + length - kHashBytes, &hash, kHashBytes);
    bytes = bytes.subspan(length);
    length_at = sizeof(kEpTraceRecord);
  }
}

void check_header(const EpTraceHeader& header) {
  std::vector<std::byte> once;
  encode_header(header, once);
  const auto again = decode_header(once);
  MUSTER_CHECK(again.ok(), again.status().to_string());
  std::vector<std::byte> twice;
  encode_header(*again, twice);
  MUSTER_CHECK(once == twice, "a header survives a round trip");
}

std::vector<std::byte> encoded(const EpTraceHeader& header, const EpTraceRecord& record) {
  EpPlan plan;
  plan.shape = header.shape;
  plan.rank = record.rank;
  plan.tokens = record.tokens;
  plan.hash = record.plan_hash;
  plan.statistics = record.statistics;
  plan.counts = record.counts;
  std::vector<std::byte> bytes;
  encode_record(record.layer, record.step, plan, record.choices, bytes);
  return bytes;
}

void check_record(const EpTraceHeader& header, const EpTraceRecord& record) {
  const std::vector<std::byte> once = encoded(header, record);
  EpTraceRecord again;
  std::string why;
  MUSTER_CHECK(decode_record(header, once, again, why), why);
  MUSTER_CHECK(encoded(header, again) == once, "a record survives a round trip");
}

void check_trace(std::span<const std::byte> bytes) {
  static const FileDescriptor kFile{::memfd_create("trace", MFD_CLOEXEC)};
  MUSTER_CHECK(::ftruncate(kFile.get(), 0) == 0 && ::lseek(kFile.get(), 0, SEEK_SET) == 0, "empty");
  MUSTER_CHECK(write_all(kFile.get(), bytes, "trace").ok(), "the file in memory takes the input");
  auto reader = EpTraceReader::open("/proc/self/fd/" + std::to_string(kFile.get()));
  if (!reader.ok()) {
    MUSTER_CHECK(!reader.status().message().empty(), "a refusal names its reason");
    return;
  }
  check_header(reader->header());
  EpTraceRecord record;
  auto more = reader->next(record);
  for (; more.ok() && *more; more = reader->next(record)) {
    check_record(reader->header(), record);
    MUSTER_CHECK(reader->offset() <= static_cast<std::int64_t>(bytes.size()), "inside the file");
  }
  MUSTER_CHECK(more.ok() || !more.status().message().empty(), "a refusal names its reason");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::vector<std::byte> bytes(size);
  if (size != 0) {
    std::memcpy(bytes.data(), data, size);
  }
  check_trace(bytes);
  set_hashes(bytes);
  check_trace(bytes);
  return 0;
}
