// SPDX-License-Identifier: Apache-2.0
// Lanes of a record of statistics, driven by its table (muster/kernels/update_statistics.h): sums
// and counts in SUM lanes, maxima and minima in MAX lanes, each in the order of the rows.
//
// A sum that is not finite is left out; a maximum or minimum that is not finite travels as
// +infinity and reads back as NaN, so that it wins over the values of all other ranks. Either
// raises the writer's flag if the statistic is strict.
#pragma once

#include "agent/src/verdict/lane_io.h"

#include <muster/kernels/update_statistics.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>

namespace muster::agent {

template <typename Record, std::size_t kRows>
[[nodiscard]] constexpr std::size_t sum_lanes(
    const std::array<kernels::Statistic<Record>, kRows>& table) {
  return static_cast<std::size_t>(std::count_if(
      table.begin(), table.end(), [](const auto& row) { return row.fold == kernels::Fold::kSum; }));
}

template <typename Record, std::size_t kRows>
[[nodiscard]] constexpr std::size_t max_lanes(
    const std::array<kernels::Statistic<Record>, kRows>& table) {
  return kRows - sum_lanes(table);
}

template <typename Record, std::size_t kRows>
void write_sums(
    const std::array<kernels::Statistic<Record>, kRows>& table,
    const Record& record,
    LaneWriter& out) {
  for (const kernels::Statistic<Record>& row : table) {
    if (row.fold != kernels::Fold::kSum) {
      continue;
    }
    if (row.count != nullptr) {
      out.raw(as_lane(record.*row.count));
    } else if (row.tolerance == kernels::Tolerance::kStrict) {
      out.finite(record.*row.value);
    } else {
      out.lenient(record.*row.value);
    }
  }
}

template <typename Record, std::size_t kRows>
void write_extremes(
    const std::array<kernels::Statistic<Record>, kRows>& table,
    const Record& record,
    LaneWriter& out) {
  for (const kernels::Statistic<Record>& row : table) {
    if (row.fold == kernels::Fold::kSum) {
      continue;
    }
    const bool strict = row.tolerance == kernels::Tolerance::kStrict;
    if (row.fold == kernels::Fold::kMax) {
      out.extreme(record.*row.value, strict);
    } else if (record.*row.terms == 0) {
      out.raw(kAbsent);
    } else {
      out.extreme(-(record.*row.value), strict);  // A minimum as a negative maximum.
    }
  }
}

template <typename Record, std::size_t kRows>
void read_sums(
    const std::array<kernels::Statistic<Record>, kRows>& table, LaneReader& in, Record& record) {
  for (const kernels::Statistic<Record>& row : table) {
    if (row.count != nullptr) {
      record.*row.count = in.integer();
    } else if (row.fold == kernels::Fold::kSum) {
      record.*row.value = in.next();
    }
  }
}

template <typename Record, std::size_t kRows>
void read_extremes(
    const std::array<kernels::Statistic<Record>, kRows>& table, LaneReader& in, Record& record) {
  for (const kernels::Statistic<Record>& row : table) {
    if (row.fold == kernels::Fold::kSum) {
      continue;
    }
    const double lane = in.next();
    if (lane == kAbsent) {
      record.*row.value = 0.0;
    } else if (!std::isfinite(lane)) {
      record.*row.value = std::numeric_limits<double>::quiet_NaN();
    } else {
      record.*row.value = row.fold == kernels::Fold::kMin ? -lane : lane;
    }
  }
}

}  // namespace muster::agent
