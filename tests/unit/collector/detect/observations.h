// SPDX-License-Identifier: Apache-2.0
// Observations and streams for the detector tests.
#pragma once

#include <muster/common/random.h>
#include <muster/detect/detector.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace muster::detect {

inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

inline StepObservation observation_at(
    std::int64_t step, double loss = 2.0, double gradient_norm = 0.2) {
  StepObservation observation;
  observation.step = step;
  observation.generation = 1;
  observation.loss = loss;
  observation.gradient_norm = gradient_norm;
  observation.max_logit = kNaN;
  return observation;
}

// A clean run as measured on real ones: loss 1.9 + 3 t^-0.2 with correlated noise of 0.02, gradient
// norm log-normal around 0.2 with a spread of 0.15.
class CleanStream {
 public:
  explicit CleanStream(std::uint64_t seed) : random_(seed) {}

  StepObservation next() {
    loss_noise_ = 0.3 * loss_noise_ + std::sqrt(1 - 0.3 * 0.3) * random_.normal();
    norm_noise_ = 0.5 * norm_noise_ + std::sqrt(1 - 0.5 * 0.5) * random_.normal();
    const auto t = static_cast<double>(step_ + 1);
    return observation_at(
        step_++,
        1.9 + 3 * std::pow(t, -0.2) + 0.02 * loss_noise_,
        0.2 * std::exp(0.15 * norm_noise_));
  }

 private:
  Random random_;
  std::int64_t step_{0};
  double loss_noise_{0};
  double norm_noise_{0};
};

// Layers 0, 1, ... in these modes: 0 full, 1 block attention.
inline StepObservation in_modes(StepObservation observation, const std::vector<double>& modes) {
  observation.attention.clear();
  for (std::size_t layer = 0; layer < modes.size(); ++layer) {
    observation.attention.push_back({static_cast<int>(layer), modes[layer]});
  }
  return observation;
}

inline std::size_t count_of(const std::vector<Finding>& findings, const std::string& rule) {
  std::size_t count = 0;
  for (const Finding& finding : findings) {
    count += finding.rule == rule ? 1U : 0U;
  }
  return count;
}

}  // namespace muster::detect
