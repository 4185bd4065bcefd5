// SPDX-License-Identifier: Apache-2.0
// Median and median absolute deviation (MAD) of the last values of a stream.
//
// A value; copy it to fork a simulation. Costs O(window) per value.
#pragma once

#include <cstddef>
#include <vector>

namespace muster::detect {

// The floor of the scale, so that a constant stream does not make every change infinite:
// max(absolute, relative * |median|), in units of one standard deviation.
struct ScaleFloor {
  double absolute{0};
  double relative{0};
};

class RobustWindow {
 public:
  // Keeps the last `capacity` values; `capacity` must be positive.
  RobustWindow(std::size_t capacity, ScaleFloor floor);

  // Adds a finite value; a full window drops its oldest.
  void push(double value);
  void clear();

  [[nodiscard]] std::size_t size() const { return ordered_.size(); }

  // Returns 0 if the window is empty.
  [[nodiscard]] double median() const;
  // Returns 1.4826 * MAD, the standard deviation of a normal stream, but at least the floor.
  [[nodiscard]] double scale() const;
  // Returns (value - median) / scale, positive above the median, or 0 if the window is empty.
  [[nodiscard]] double z(double value) const;

 private:
  std::size_t capacity_;
  ScaleFloor floor_;
  std::vector<double> arrived_;  // A ring.
  std::size_t oldest_{0};
  std::vector<double> ordered_;  // The same values, ascending.
};

}  // namespace muster::detect
