// NaN and infinities, found at the step they appear, without any warm-up.
//
// A long streak is found again at every power of two of its length, so that hours of NaN leave a
// trail and not a flood. A value; steps must come in order (see JobDetector).
#pragma once

#include <muster/detect/detector.h>

#include <cstdint>
#include <vector>

namespace muster::detect {

// What is not finite in this one step, without any memory; empty when all is well.
// NaN as max_logit means that there are no logits and is well.
[[nodiscard]] std::vector<Finding> find_nonfinite(const StepObservation& observation);

class NonfiniteDetector {
 public:
  [[nodiscard]] std::vector<Finding> observe(const StepObservation& observation);

  void reset() { streak_ = 0; }

 private:
  std::uint64_t streak_{0};  // Steps in a row with something that is not finite.
};

}  // namespace muster::detect
