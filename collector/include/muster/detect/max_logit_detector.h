// Attention logits of a head above tau: found once when a head crosses, and again only after it has
// come back below a lower bound.
//
// A value; steps must come in order (see JobDetector).
#pragma once

#include <muster/detect/detector.h>

#include <cstdint>
#include <set>
#include <utility>
#include <vector>

namespace muster::detect {

struct MaxLogitOptions {
  double tau{100.0};        // The policy's max_logit_threshold.
  double rearm_ratio{0.9};  // A head counts as back below tau * rearm_ratio.
};

class MaxLogitDetector {
 public:
  explicit MaxLogitDetector(MaxLogitOptions options) : options_(options) {}

  // Logits that are not finite are passed over: they are NonfiniteDetector's.
  [[nodiscard]] std::vector<Finding> observe(const StepObservation& observation);

  void reset() { above_.clear(); }

 private:
  void judge(std::int64_t step, const HeadLogit& logit, std::vector<Finding>& findings);

  MaxLogitOptions options_;
  std::set<std::pair<int, int>> above_;  // (layer, head) that crossed and are not back yet.
};

}  // namespace muster::detect
