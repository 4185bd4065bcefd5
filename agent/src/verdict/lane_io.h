// SPDX-License-Identifier: Apache-2.0
// Writing lanes one after the other, and reading them back in the same order.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace muster::agent {

// Value of a MAX lane that this rank has no value for.
inline constexpr double kAbsent = -std::numeric_limits<double>::infinity();

inline double as_lane(std::int64_t value) {
  return static_cast<double>(value);
}

inline double as_lane(std::uint64_t value) {
  return static_cast<double>(value);
}

inline double as_lane(bool value) {
  return value ? 1.0 : 0.0;
}

// Appends values to a vector of lanes; what is not finite is left out and flagged.
class LaneWriter {
 public:
  explicit LaneWriter(std::span<double> lanes) : lanes_(lanes) {}

  void raw(double value) { lanes_[next_++] = value; }

  void finite(double value) {
    nonfinite_ = nonfinite_ || !std::isfinite(value);
    raw(std::isfinite(value) ? value : 0.0);
  }

  // Leaves out a value that is not finite, without a flag: see LocalLanes::update.
  void lenient(double value) { raw(std::isfinite(value) ? value : 0.0); }

  // For a MAX lane: a value that is not finite becomes +infinity, and is flagged if `strict`.
  void extreme(double value, bool strict) {
    nonfinite_ = nonfinite_ || (strict && !std::isfinite(value));
    raw(std::isfinite(value) ? value : -kAbsent);
  }

  // Minimum and maximum of an integer through one MAX reduction.
  template <typename T>
  void range(T value) {
    raw(as_lane(value));
    raw(-as_lane(value));
  }

  [[nodiscard]] bool nonfinite() const { return nonfinite_; }

  [[nodiscard]] std::size_t position() const { return next_; }

 private:
  std::span<double> lanes_;
  std::size_t next_{0};
  bool nonfinite_{false};
};

class LaneReader {
 public:
  explicit LaneReader(std::span<const double> lanes) : lanes_(lanes) {}

  double next() { return lanes_[next_++]; }

  bool flag() { return next() > 0.0; }

  std::int64_t integer() { return static_cast<std::int64_t>(next()); }

  std::int64_t minimum() { return static_cast<std::int64_t>(-next()); }

  std::uint64_t count() { return static_cast<std::uint64_t>(next()); }

  std::uint64_t count_minimum() { return static_cast<std::uint64_t>(-next()); }

 private:
  std::span<const double> lanes_;
  std::size_t next_{0};
};

}  // namespace muster::agent
