// SPDX-License-Identifier: Apache-2.0
// Finds attention logits above tau: once when a head crosses, and again only after it has fallen
// below a lower bound. Attention modes are tracked separately, since full attention sees logits
// that block attention leaves out.
//
// A value; steps must come in order (see JobDetector).
#pragma once

#include <muster/detect/detector.h>
#include <muster/detect/mode_tracker.h>

#include <cstdint>
#include <set>
#include <tuple>
#include <vector>

namespace muster::detect {

struct MaxLogitOptions {
  double tau{100.0};        // The policy's max_logit_threshold.
  double rearm_ratio{0.9};  // A head counts as back below tau * rearm_ratio.
};

class MaxLogitDetector {
 public:
  explicit MaxLogitDetector(MaxLogitOptions options) : options_(options) {}

  // Skips logits that are not finite: NonfiniteDetector finds those. `modes` must have observed
  // this step.
  [[nodiscard]] std::vector<Finding> observe(
      const StepObservation& observation, const ModeTracker& modes = {});

  void reset() { above_.clear(); }

 private:
  void judge(std::int64_t step, const HeadLogit& logit, int mode, std::vector<Finding>& findings);

  MaxLogitOptions options_;
  // (layer, head, mode) that crossed and are not back yet.
  std::set<std::tuple<int, int, int>> above_;
};

}  // namespace muster::detect
