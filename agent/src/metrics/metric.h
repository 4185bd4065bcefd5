// SPDX-License-Identifier: Apache-2.0
// A metric: the entry of the catalogue and the function that computes its value, in one row.
//
// Rows are grouped in tables by what they describe (the job, a group, a layer, a rank); a view
// holds what the values of one table are computed from. Neither allocates nor makes a system call.
#pragma once

#include <muster/common/telemetry.h>

#include <chrono>
#include <cstddef>
#include <limits>

namespace muster::agent {

// One line of docs/reference/metrics.md.
struct MetricFamily {
  const char* name;
  const char* unit;
  MetricKind kind;
  MetricScope scope;
};

template <typename View>
struct Metric {
  MetricFamily family;
  double (*value)(const View& view);
};

// A metric with a column per head, expert, bin or peer.
template <typename View>
struct IndexedMetric {
  MetricFamily family;
  double (*value)(const View& view, std::size_t index);
};

// Published as "nothing to report".
inline constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

[[nodiscard]] inline double seconds(std::chrono::nanoseconds duration) {
  return std::chrono::duration<double>(duration).count();
}

[[nodiscard]] inline double ratio(double part, double whole) {
  return whole > 0.0 ? part / whole : kNone;
}

// A maximum over ranks of which none had a value is -infinity.
[[nodiscard]] inline double known_maximum(double maximum) {
  return maximum == -std::numeric_limits<double>::infinity() ? kNone : maximum;
}

}  // namespace muster::agent
