// SPDX-License-Identifier: Apache-2.0
#include <muster/common/text.h>
#include <muster/detect/flat_detector.h>

#include <bit>
#include <cmath>

namespace muster::detect {

std::vector<Finding> FlatDetector::observe(const StepObservation& observation) {
  std::vector<Finding> findings;
  judge(loss_, "loss", observation.loss, observation.step, findings);
  judge(norm_, "gradient_norm", observation.gradient_norm, observation.step, findings);
  return findings;
}

void FlatDetector::judge(
    Streak& streak,
    const std::string& subject,
    double value,
    std::int64_t step,
    std::vector<Finding>& findings) const {
  if (!std::isfinite(value)) {
    streak = {};
    return;
  }
  streak = {value, value == streak.value ? streak.steps + 1 : 1};
  const std::int64_t limit = value == 0 ? options_.zero_steps : options_.constant_steps;
  const bool doubled = streak.steps % limit == 0 &&
                       std::has_single_bit(static_cast<std::uint64_t>(streak.steps / limit));
  if (!doubled) {
    return;
  }
  Finding& finding = findings.emplace_back();
  finding.rule = "flat";
  finding.step = step;
  finding.subject = subject;
  finding.reason = concat(
      subject,
      " is exactly ",
      value,
      " for ",
      streak.steps,
      " steps in a row up to step ",
      step,
      value == 0 ? ": nothing is learned any more; check data, labels and loss mask"
                 : ": check that batches change and parameters are updated");
  finding.inputs = {{"value", value}, {"steps", static_cast<double>(streak.steps)}};
}

}  // namespace muster::detect
