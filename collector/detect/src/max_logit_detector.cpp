// SPDX-License-Identifier: Apache-2.0
#include <muster/common/text.h>
#include <muster/detect/max_logit_detector.h>

#include <cmath>
#include <string>

namespace muster::detect {

std::vector<Finding> MaxLogitDetector::observe(
    const StepObservation& observation, const ModeTracker& modes) {
  std::vector<Finding> findings;
  for (const HeadLogit& logit : observation.head_logits) {
    judge(observation.step, logit, modes.mode_of(logit.layer), findings);
  }
  if (!observation.head_logits.empty() || !std::isfinite(observation.max_logit)) {
    return findings;
  }
  // Only the largest of all heads is known: when it is low, every head is.
  if (observation.max_logit < options_.tau * options_.rearm_ratio) {
    std::erase_if(above_, [&modes](const auto& crossed) {
      return std::get<2>(crossed) == modes.mode_of(std::get<0>(crossed));
    });
  } else {
    judge(
        observation.step,
        {observation.max_logit_layer, observation.max_logit_head, observation.max_logit},
        modes.mode_of(observation.max_logit_layer),
        findings);
  }
  return findings;
}

void MaxLogitDetector::judge(
    std::int64_t step, const HeadLogit& logit, int mode, std::vector<Finding>& findings) {
  if (!std::isfinite(logit.value)) {
    return;
  }
  const std::tuple head{logit.layer, logit.head, mode};
  if (logit.value < options_.tau * options_.rearm_ratio) {
    above_.erase(head);
    return;
  }
  if (logit.value <= options_.tau || !above_.insert(head).second) {
    return;
  }
  Finding& finding = findings.emplace_back();
  finding.rule = "max_logit";
  finding.severity = Severity::kWarning;
  finding.step = step;
  finding.subject = "layer " + std::to_string(logit.layer) + " head " + std::to_string(logit.head);
  finding.reason = concat(
      "max attention logit of ",
      finding.subject,
      " is ",
      general(logit.value, 4),
      " at step ",
      step,
      ", above tau ",
      general(options_.tau, 4));
  finding.inputs = {
      {"value", logit.value},
      {"tau", options_.tau},
      {"layer", static_cast<double>(logit.layer)},
      {"head", static_cast<double>(logit.head)}};
}

}  // namespace muster::detect
