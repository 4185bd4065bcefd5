// SPDX-License-Identifier: Apache-2.0
#include <muster/common/check.h>
#include <muster/detect/robust_window.h>

#include <algorithm>
#include <cmath>

namespace muster::detect {

namespace {

// Standard deviation over MAD for a normal distribution.
constexpr double kMadToSigma = 1.4826;

double median_of_sorted(const std::vector<double>& values) {
  if (values.empty()) {
    return 0;
  }
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : 0.5 * (values[middle - 1] + values[middle]);
}

}  // namespace

RobustWindow::RobustWindow(std::size_t capacity, ScaleFloor floor)
    : capacity_(capacity), floor_(floor) {
  MUSTER_CHECK(capacity > 0, "a window needs room");
  arrived_.reserve(capacity);
  ordered_.reserve(capacity + 1);
}

void RobustWindow::push(double value) {
  ordered_.insert(std::upper_bound(ordered_.begin(), ordered_.end(), value), value);
  if (arrived_.size() < capacity_) {
    arrived_.push_back(value);
    return;
  }
  const double leaving = arrived_[oldest_];
  arrived_[oldest_] = value;
  oldest_ = (oldest_ + 1) % capacity_;
  ordered_.erase(std::lower_bound(ordered_.begin(), ordered_.end(), leaving));
}

void RobustWindow::clear() {
  arrived_.clear();
  ordered_.clear();
  oldest_ = 0;
}

double RobustWindow::median() const {
  return median_of_sorted(ordered_);
}

double RobustWindow::scale() const {
  const double center = median();
  // Deviations below and above the median are each sorted already: walk both from the middle
  // outwards until half of the values are behind.
  const auto above = std::lower_bound(ordered_.begin(), ordered_.end(), center);
  auto up = above;
  auto down = std::make_reverse_iterator(above);
  const std::size_t wanted = ordered_.size() / 2;
  double deviation = 0;
  double before = 0;
  for (std::size_t i = 0; i <= wanted && i < ordered_.size(); ++i) {
    before = deviation;
    const bool take_up =
        down == ordered_.rend() || (up != ordered_.end() && *up - center <= center - *down);
    deviation = take_up ? *up++ - center : center - *down++;
  }
  if (ordered_.size() % 2 == 0) {
    deviation = 0.5 * (before + deviation);
  }
  return std::max({kMadToSigma * deviation, floor_.absolute, floor_.relative * std::abs(center)});
}

double RobustWindow::z(double value) const {
  if (ordered_.empty()) {
    return 0;
  }
  return (value - median()) / scale();
}

}  // namespace muster::detect
