// SPDX-License-Identifier: Apache-2.0
#include "collector/src/judge.h"

#include <charconv>
#include <optional>
#include <string_view>
#include <utility>

namespace muster::collector {

namespace {

detect::JobDetectorOptions detector_options(const Policy& policy) {
  detect::JobDetectorOptions options;
  options.max_logit.tau = policy.max_logit_threshold;
  options.reach = policy.reach;
  options.expert_imbalance = policy.expert_imbalance;
  return options;
}

std::string label(const Event& event, const char* name) {
  const auto found = event.labels.find(name);
  return found == event.labels.end() ? std::string{} : found->second;
}

// Nothing for other events, and for one that does not name its layer or step.
std::optional<detect::ModeChange> to_mode_change(Generation generation, const Event& event) {
  const std::string layer = label(event, "layer");
  detect::ModeChange change{
      generation.value(), event.step, -1, label(event, "from"), label(event, "to")};
  const auto [end, error] =
      std::from_chars(layer.data(), layer.data() + layer.size(), change.layer);
  const bool known = event.kind == event_kind::kAttentionModeChanged && event.step >= 0 &&
                     error == std::errc{} && end == layer.data() + layer.size() &&
                     change.layer >= 0;
  return known ? std::optional{change} : std::nullopt;
}

}  // namespace

Judge::Judge(const Policy& policy)
    : policy_(&policy), detector_(detector_options(policy)), waits_(policy.wait) {}

std::vector<detect::Finding> Judge::observe(const detect::StepObservation& observation) {
  return detector_.observe(observation);
}

std::vector<detect::Finding> Judge::observe(const detect::WaitRow& row) {
  return waits_.observe(row);
}

void Judge::note(Generation generation, const Event& event) {
  if (const auto change = to_mode_change(generation, event)) {
    detector_.note(*change);
  }
}

Judgement Judge::decide(const detect::Finding& finding, std::int64_t wall_unix_ns) {
  Judgement judgement;
  judgement.finding = policy::to_event(finding, wall_unix_ns);
  for (const policy::PlannedAction& planned : policy::decide(*policy_, finding, policy_state_)) {
    judgement.actions.push_back(policy::to_event(planned, finding, wall_unix_ns));
    if (std::optional<Command> command = policy::to_command(planned)) {
      judgement.commands.push_back(*std::move(command));
    }
  }
  return judgement;
}

void Judge::replay(
    const std::vector<detect::StepObservation>& observations,
    Generation generation,
    const std::vector<Event>& events) {
  for (const Event& event : events) {
    note(generation, event);
  }
  for (const detect::StepObservation& observation : observations) {
    static_cast<void>(detector_.observe(observation));
  }
  static_cast<void>(detector_.flush());
  for (const Event& event : events) {
    policy::replay(event, policy_state_);
  }
}

}  // namespace muster::collector
