// SPDX-License-Identifier: Apache-2.0
#include "collector/store/src/summary.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace muster::store {

static_assert(std::endian::native == std::endian::little, "the file format is little-endian");

void Summary::add(std::int64_t step, float value) {
  if (count > 0 && step > step_last && std::isfinite(value)) {
    // The common case: one more finite sample at the end.
    step_last = value_step = step;
    last = value;
    min = std::min(min, value);
    max = std::max(max, value);
    ++count;
    return;
  }
  Summary one;
  one.step_first = one.step_last = one.value_step = step;
  one.min = one.max = one.last = value;
  (std::isfinite(value) ? one.count : one.nonfinite_count) = 1;
  merge(one);
}

void Summary::merge(const Summary& other) {
  if (other.empty()) {
    return;
  }
  if (empty()) {
    *this = other;
    return;
  }
  const bool values_from_other = other.count > 0 && count == 0;
  const bool same_class = (other.count > 0) == (count > 0);
  if (values_from_other || (same_class && other.value_step > value_step)) {
    last = other.last;
    value_step = other.value_step;
  }
  if (count == 0) {
    min = other.count > 0 ? other.min : last;
    max = other.count > 0 ? other.max : last;
  } else if (other.count > 0) {
    min = std::min(min, other.min);
    max = std::max(max, other.max);
  }
  step_first = std::min(step_first, other.step_first);
  step_last = std::max(step_last, other.step_last);
  count += other.count;
  nonfinite_count += other.nonfinite_count;
}

Bucket to_bucket(const Summary& summary) {
  return Bucket{
      .step_first = summary.step_first,
      .step_last = summary.step_last,
      .min = summary.min,
      .max = summary.max,
      .last = summary.last,
      .count = summary.count,
      .nonfinite_count = summary.nonfinite_count};
}

void append_summary(
    const Summary& summary, std::int64_t entry_first_step, std::vector<std::byte>& bytes) {
  const std::array<float, 3> values{summary.min, summary.max, summary.last};
  std::array<std::uint16_t, 6> counts{
      static_cast<std::uint16_t>(summary.count),
      static_cast<std::uint16_t>(summary.nonfinite_count),
      0,
      0,
      0,
      0};
  if (!summary.empty()) {
    counts[2] = static_cast<std::uint16_t>(summary.step_first - entry_first_step);
    counts[3] = static_cast<std::uint16_t>(summary.step_last - entry_first_step);
    counts[4] = static_cast<std::uint16_t>(summary.value_step - entry_first_step);
  }
  const std::size_t at = bytes.size();
  bytes.resize(at + kSummaryBytes);
  std::memcpy(bytes.data() + at, values.data(), sizeof(values));
  std::memcpy(bytes.data() + at + sizeof(values), counts.data(), sizeof(counts));
}

Summary read_summary(
    std::span<const std::byte, kSummaryBytes> bytes, std::int64_t entry_first_step) {
  std::array<float, 3> values{};
  std::array<std::uint16_t, 6> counts{};
  std::memcpy(values.data(), bytes.data(), sizeof(values));
  std::memcpy(counts.data(), bytes.data() + sizeof(values), sizeof(counts));
  return Summary{
      .step_first = entry_first_step + counts[2],
      .step_last = entry_first_step + counts[3],
      .value_step = entry_first_step + counts[4],
      .min = values[0],
      .max = values[1],
      .last = values[2],
      .count = counts[0],
      .nonfinite_count = counts[1]};
}

}  // namespace muster::store
