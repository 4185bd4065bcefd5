// SPDX-License-Identifier: Apache-2.0
// What is kept of many samples of one series: extremes, the newest, and how many were not finite.
//
// Merging is exact and does not depend on the order of the parts, so a bucket is the same whether
// it is built from frames, chunks, the pyramid or any mixture.
#pragma once

#include "collector/store/src/keys.h"

#include <muster/common/status.h>
#include <muster/store/query.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace muster::store {

// Invariants: (1) count is the number of finite samples, nonfinite_count of the others; both 0:
// empty. (2) min, max and last are over finite samples; without any they are the last sample as it
// came, bit for bit. (3) value_step is the step of `last`.
struct Summary {
  std::int64_t step_first{0};
  std::int64_t step_last{0};
  std::int64_t value_step{-1};
  float min{0};
  float max{0};
  float last{0};
  std::uint32_t count{0};
  std::uint32_t nonfinite_count{0};

  [[nodiscard]] bool empty() const { return count + nonfinite_count == 0; }

  void add(std::int64_t step, float value);
  void merge(const Summary& other);

  friend bool operator==(const Summary&, const Summary&) = default;
};

[[nodiscard]] Bucket to_bucket(const Summary& summary);

// 24 bytes little-endian: min, max, last (f32); count, nonfinite_count, and the offsets of
// step_first, step_last and value_step from the entry's first step (u16). Steps per entry <= 4096.
inline constexpr std::size_t kSummaryBytes = 24;
void append_summary(
    const Summary& summary, std::int64_t entry_first_step, std::vector<std::byte>& bytes);
[[nodiscard]] Summary read_summary(
    std::span<const std::byte, kSummaryBytes> bytes, std::int64_t entry_first_step);

// The non-empty entries of a pyramid_64 row whose first step is `step`, as `visit(const Summary&)`.
template <typename Visit>
[[nodiscard]] Status for_each_summary(
    std::span<const std::byte> bytes, std::int64_t step, const Visit& visit) {
  if (bytes.size() != kSummaryBytes * kEntriesPerChunk) {
    return data_loss("the pyramid over step ", step, " has a wrong size");
  }
  for (; !bytes.empty(); bytes = bytes.subspan(kSummaryBytes), step += kPyramidSteps) {
    const Summary summary = read_summary(bytes.first<kSummaryBytes>(), step);
    if (!summary.empty()) {
      visit(summary);
    }
  }
  return {};
}

}  // namespace muster::store
