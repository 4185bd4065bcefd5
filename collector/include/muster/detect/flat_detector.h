// SPDX-License-Identifier: Apache-2.0
// Losses and gradient norms that stop moving: exactly 0, or the same number step after step.
// Training that has fallen to 0 looks calm to every detector of rises.
//
// A long streak is found again whenever its length has doubled. A value; steps must come in order.
#pragma once

#include <muster/detect/detector.h>

#include <cstdint>
#include <string>
#include <vector>

namespace muster::detect {

struct FlatOptions {
  std::int64_t zero_steps{10};       // applied steps in a row of exactly 0
  std::int64_t constant_steps{200};  // applied steps in a row of one other value
};

class FlatDetector {
 public:
  explicit FlatDetector(FlatOptions options) : options_(options) {}

  // `observation` must be of an applied step.
  [[nodiscard]] std::vector<Finding> observe(const StepObservation& observation);

  void reset() { loss_ = norm_ = {}; }

 private:
  struct Streak {
    double value{0};
    std::int64_t steps{0};
  };

  void judge(
      Streak& streak,
      const std::string& subject,
      double value,
      std::int64_t step,
      std::vector<Finding>& findings) const;

  FlatOptions options_;
  Streak loss_;
  Streak norm_;
};

}  // namespace muster::detect
