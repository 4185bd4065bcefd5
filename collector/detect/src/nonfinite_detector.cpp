// SPDX-License-Identifier: Apache-2.0
#include <muster/detect/nonfinite_detector.h>

#include <bit>
#include <cmath>
#include <string>

namespace muster::detect {

std::vector<Finding> find_nonfinite(const StepObservation& observation) {
  std::vector<Finding> findings;
  const auto add = [&](const std::string& subject, double value) {
    Finding& finding = findings.emplace_back();
    finding.rule = "nonfinite";
    finding.severity = Severity::kError;
    finding.step = observation.step;
    finding.subject = subject;
    finding.reason = subject + " is not finite at step " + std::to_string(observation.step) +
                     (observation.skipped ? "; the step was skipped" : "");
    finding.inputs = {
        {"value", value},
        {"nonfinite_count", observation.nonfinite_count},
        {"skipped", observation.skipped ? 1.0 : 0.0}};
  };
  if (!std::isfinite(observation.loss)) {
    add("loss", observation.loss);
  }
  // A NaN count cannot be trusted: a NaN was among its addends.
  if (!std::isfinite(observation.gradient_norm) || !(observation.nonfinite_count <= 0)) {
    add("gradient", observation.gradient_norm);
  }
  if (std::isinf(observation.max_logit)) {
    add("layer " + std::to_string(observation.max_logit_layer) + " head " +
            std::to_string(observation.max_logit_head),
        observation.max_logit);
  }
  return findings;
}

std::vector<Finding> NonfiniteDetector::observe(const StepObservation& observation) {
  std::vector<Finding> findings = find_nonfinite(observation);
  streak_ = findings.empty() ? 0 : streak_ + 1;
  if (streak_ > 1 && !std::has_single_bit(streak_)) {
    return {};
  }
  for (Finding& finding : findings) {
    finding.inputs.emplace("streak", static_cast<double>(streak_));
    if (streak_ > 1) {
      finding.reason += "; " + std::to_string(streak_) + " such steps in a row";
    }
  }
  return findings;
}

}  // namespace muster::detect
