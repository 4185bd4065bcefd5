// SPDX-License-Identifier: Apache-2.0
// NaN and infinities, found at the step they appear, without any warm-up.
//
// A long streak is found again at every power of two of its length, so that hours of NaN give a
// few findings and not a flood. A value; steps must come in order (see JobDetector).
#pragma once

#include <muster/detect/detector.h>

#include <cstdint>
#include <vector>

namespace muster::detect {

// Returns the values of this one step that are not finite, without any memory. A max_logit of NaN
// means that there are no logits and is not a finding.
[[nodiscard]] std::vector<Finding> find_nonfinite(const StepObservation& observation);

class NonfiniteDetector {
 public:
  [[nodiscard]] std::vector<Finding> observe(const StepObservation& observation);

  void reset() { streak_ = 0; }

 private:
  std::uint64_t streak_{0};  // Steps in a row with something that is not finite.
};

}  // namespace muster::detect
