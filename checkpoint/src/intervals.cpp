// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/src/intervals.h"

#include <algorithm>

namespace muster::checkpoint {

std::optional<std::int64_t> element_count(std::span<const std::int64_t> shape) {
  std::int64_t count = 1;
  for (const std::int64_t dimension : shape) {
    if (dimension < 0 || __builtin_mul_overflow(count, dimension, &count)) {
      return std::nullopt;
    }
  }
  return count;
}

std::optional<Interval> flattened(
    std::span<const std::int64_t> shape,
    std::span<const std::int64_t> global_shape,
    std::span<const std::int64_t> offset) {
  const std::size_t rank = shape.size();
  const auto count = element_count(shape);
  if (global_shape.size() != rank || offset.size() != rank || !count ||
      !element_count(global_shape)) {
    return std::nullopt;
  }
  for (std::size_t i = 0; i < rank; ++i) {
    if (offset[i] < 0 || shape[i] > global_shape[i] || offset[i] > global_shape[i] - shape[i]) {
      return std::nullopt;
    }
  }
  if (*count == 0) {
    return Interval{};
  }
  // One run: single slices outside, then at most one dimension that is cut, then whole dimensions.
  std::size_t cut = 0;
  while (cut < rank && shape[cut] == 1) {
    ++cut;
  }
  for (std::size_t i = cut + 1; i < rank; ++i) {
    if (shape[i] != global_shape[i]) {
      return std::nullopt;
    }
  }
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < rank; ++i) {
    begin = begin * global_shape[i] + offset[i];
  }
  return Interval{begin, begin + *count};
}

std::optional<CoverageFault> find_coverage_fault(
    std::span<const Interval> intervals, std::int64_t total) {
  std::int64_t covered = 0;
  for (std::size_t i = 0; i < intervals.size(); ++i) {
    const Interval& next = intervals[i];
    if (next.begin > covered) {
      return CoverageFault{false, {covered, next.begin}, i};
    }
    if (next.begin < covered) {
      return CoverageFault{true, {next.begin, std::min(covered, next.end)}, i};
    }
    covered = next.end;
  }
  if (covered < total) {
    return CoverageFault{false, {covered, total}, intervals.size()};
  }
  return std::nullopt;
}

}  // namespace muster::checkpoint
