// SPDX-License-Identifier: Apache-2.0
#include "dashboard/server/range_codec.h"

#include <bit>
#include <cstring>

namespace muster::dashboard {

namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr std::uint32_t kMagic = 0x474E524DU;  // "MRNG"
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kEntryBytes = 5 * sizeof(double) + 2 * sizeof(std::uint32_t);
constexpr std::size_t kBucketBytes = 2 * sizeof(double) + 5 * sizeof(float);

template <typename T>
void append(std::string& bytes, T value) {
  char raw[sizeof(T)];
  std::memcpy(raw, &value, sizeof(T));
  bytes.append(raw, sizeof(T));
}

void append_step(std::string& bytes, std::int64_t value) {
  append(bytes, static_cast<double>(value));
}

void append_entry(std::string& bytes, const store::SeriesRange& range) {
  append_step(bytes, range.series_id);
  append_step(bytes, range.generation);
  append_step(bytes, range.step_begin);
  append_step(bytes, range.step_end);
  append_step(bytes, range.bucket_steps);
  append(bytes, static_cast<std::uint32_t>(range.buckets.size()));
  append(bytes, std::uint32_t{0});
  const auto column = [&](auto member) {
    for (const store::Bucket& bucket : range.buckets) {
      append(bytes, bucket.*member);
    }
  };
  for (const store::Bucket& bucket : range.buckets) {
    append_step(bytes, bucket.step_first);
  }
  for (const store::Bucket& bucket : range.buckets) {
    append_step(bytes, bucket.step_last);
  }
  column(&store::Bucket::min);
  column(&store::Bucket::max);
  column(&store::Bucket::last);
  column(&store::Bucket::count);
  column(&store::Bucket::nonfinite_count);
  if (range.buckets.size() % 2 == 1) {
    append(bytes, std::uint32_t{0});
  }
}

}  // namespace

std::string encode_ranges(const std::vector<store::SeriesRange>& ranges) {
  std::size_t size = 4 * sizeof(std::uint32_t);
  for (const store::SeriesRange& range : ranges) {
    size += kEntryBytes + range.buckets.size() * kBucketBytes + sizeof(std::uint32_t);
  }
  std::string bytes;
  bytes.reserve(size);
  append(bytes, kMagic);
  append(bytes, kVersion);
  append(bytes, static_cast<std::uint32_t>(ranges.size()));
  append(bytes, std::uint32_t{0});
  for (const store::SeriesRange& range : ranges) {
    append_entry(bytes, range);
  }
  return bytes;
}

}  // namespace muster::dashboard
