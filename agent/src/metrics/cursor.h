// Filling a row of values, column after column.
#pragma once

#include <chrono>
#include <cstddef>
#include <limits>
#include <span>

namespace muster::agent {

inline constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

class Cursor {
 public:
  explicit Cursor(std::span<float> values) : values_(values) {}

  void put(double value) { values_[next_++] = static_cast<float>(value); }

  [[nodiscard]] std::size_t position() const { return next_; }

 private:
  std::span<float> values_;
  std::size_t next_{0};
};

inline double seconds(std::chrono::nanoseconds duration) {
  return std::chrono::duration<double>(duration).count();
}

inline double ratio(double part, double whole) {
  return whole > 0.0 ? part / whole : kNone;
}

}  // namespace muster::agent
