#include "src/judge.h"

#include <optional>
#include <utility>

namespace muster::collector {

namespace {

detect::JobDetectorOptions detector_options(const Policy& policy) {
  detect::JobDetectorOptions options;
  options.max_logit.tau = policy.max_logit_threshold;
  return options;
}

}  // namespace

Judge::Judge(const Policy& policy) : policy_(&policy), detector_(detector_options(policy)) {}

std::vector<detect::Finding> Judge::observe(const detect::StepObservation& observation) {
  return detector_.observe(observation);
}

Judgement Judge::decide(const detect::Finding& finding, std::int64_t wall_unix_ns) {
  Judgement judgement;
  judgement.finding = to_event(finding, wall_unix_ns);
  for (const PlannedAction& planned : collector::decide(*policy_, finding, policy_state_)) {
    judgement.actions.push_back(to_event(planned, finding, wall_unix_ns));
    if (std::optional<Command> command = to_command(planned)) {
      judgement.commands.push_back(*std::move(command));
    }
  }
  return judgement;
}

void Judge::replay(
    const std::vector<detect::StepObservation>& observations, const std::vector<Event>& actions) {
  for (const detect::StepObservation& observation : observations) {
    static_cast<void>(detector_.observe(observation));
  }
  static_cast<void>(detector_.flush());
  for (const Event& action : actions) {
    collector::replay(action, policy_state_);
  }
}

}  // namespace muster::collector
