// SPDX-License-Identifier: Apache-2.0
#include <muster/policy/policy.h>

#include <algorithm>
#include <utility>

namespace muster::policy {

namespace {

constexpr const char* kRuleLabel = "rule";
constexpr const char* kActionLabel = "action";
constexpr const char* kOutcomeLabel = "outcome";
constexpr const char* kFindingLabel = "finding";
constexpr const char* kSubjectLabel = "subject";
constexpr const char* kActedCountInput = "acted_count";

bool matches(const Rule& rule, const detect::Finding& finding) {
  return rule.finding == finding.rule && (rule.subject.empty() || rule.subject == finding.subject);
}

// Why the whole rule is held back; kExecute when it is not.
Outcome hold_back(const Rule& rule, std::int64_t step, const PolicyState::RuleState& state) {
  if (rule.budget >= 0 && state.acted_count >= rule.budget) {
    return Outcome::kBudget;
  }
  const bool comparable = state.acted_step >= 0 && step >= state.acted_step;
  if (comparable && step - state.acted_step < rule.cooldown_steps) {
    return Outcome::kCooldown;
  }
  return Outcome::kExecute;
}

std::string explain(
    const Rule& rule, const PolicyState::RuleState& state, const Action& action, Outcome outcome) {
  std::string what = std::string{to_string(action.kind)} + " by rule " + rule.name;
  switch (outcome) {
    case Outcome::kExecute:
      return what;
    case Outcome::kDryRun:
      return what + " was left out: dry run";
    case Outcome::kCooldown:
      return what + " was held back: it acted at step " + std::to_string(state.acted_step) +
             " and waits " + std::to_string(rule.cooldown_steps) + " steps";
    case Outcome::kBudget:
      return what + " was held back: its budget of " + std::to_string(rule.budget) +
             " per run is used up";
  }
  return what;
}

}  // namespace

const char* to_string(Outcome outcome) {
  switch (outcome) {
    case Outcome::kExecute:
      return "execute";
    case Outcome::kDryRun:
      return "dry_run";
    case Outcome::kCooldown:
      return "cooldown";
    case Outcome::kBudget:
      return "budget";
  }
  return "unknown";
}

std::vector<PlannedAction> decide(
    const Policy& policy, const detect::Finding& finding, PolicyState& state) {
  std::vector<PlannedAction> planned;
  for (const Rule& rule : policy.rules) {
    if (!matches(rule, finding)) {
      continue;
    }
    PolicyState::RuleState& rule_state = state.rules[rule.name];
    const PolicyState::RuleState before = rule_state;
    const Outcome held = hold_back(rule, finding.step, before);
    if (held == Outcome::kExecute) {
      rule_state = {.acted_count = before.acted_count + 1, .acted_step = finding.step};
    }
    for (const Action& action : rule.actions) {
      PlannedAction& entry = planned.emplace_back();
      entry.rule = rule.name;
      entry.action = action;
      entry.outcome = held == Outcome::kExecute && action.dry_run ? Outcome::kDryRun : held;
      entry.acted_count = rule_state.acted_count;
      const bool expires = rule.expires_steps >= 0 && finding.step >= 0;
      entry.expires_step = expires ? finding.step + rule.expires_steps : -1;
      entry.reason = finding.reason + ": " + explain(rule, before, action, entry.outcome);
    }
  }
  return planned;
}

std::optional<Command> to_command(const PlannedAction& planned) {
  if (planned.outcome != Outcome::kExecute) {
    return std::nullopt;
  }
  Command command;
  switch (planned.action.kind) {
    case ActionKind::kRecord:
    case ActionKind::kAlarm:
      return std::nullopt;
    case ActionKind::kCheckpointNow:
      command.kind = CommandKind::kCheckpointNow;
      break;
    case ActionKind::kArmQkClip:
      command.kind = CommandKind::kSetQkClipThreshold;
      break;
    case ActionKind::kSkipStep:
      command.kind = CommandKind::kSkipStep;
      break;
    case ActionKind::kStop:
      command.kind = CommandKind::kStop;
      break;
  }
  command.argument = planned.action.argument;
  command.expires_step = planned.expires_step;
  command.reason = planned.reason;
  command.issuer = "policy:" + planned.rule;
  return command;
}

Event to_event(const detect::Finding& finding, std::int64_t wall_unix_ns) {
  Event event;
  event.kind = event_kind::kFinding;
  event.severity = finding.severity;
  event.step = finding.step;
  event.wall_unix_ns = wall_unix_ns;
  event.reason = finding.reason;
  event.inputs = finding.inputs;
  event.labels = {{kFindingLabel, finding.rule}, {kSubjectLabel, finding.subject}};
  return event;
}

Event to_event(
    const PlannedAction& planned, const detect::Finding& finding, std::int64_t wall_unix_ns) {
  Event event = to_event(finding, wall_unix_ns);
  event.kind = event_kind::kAction;
  const bool alarm = planned.action.kind == ActionKind::kAlarm;
  event.severity =
      alarm && planned.outcome == Outcome::kExecute ? Severity::kError : Severity::kInfo;
  event.reason = planned.reason;
  event.inputs.emplace("argument", planned.action.argument);
  event.inputs.emplace(kActedCountInput, static_cast<double>(planned.acted_count));
  event.labels.emplace(kRuleLabel, planned.rule);
  event.labels.emplace(kActionLabel, to_string(planned.action.kind));
  event.labels.emplace(kOutcomeLabel, to_string(planned.outcome));
  return event;
}

void replay(const Event& event, PolicyState& state) {
  const auto label = [&event](const char* name) {
    const auto found = event.labels.find(name);
    return found == event.labels.end() ? std::string{} : found->second;
  };
  const std::string rule = label(kRuleLabel);
  const std::string outcome = label(kOutcomeLabel);
  const bool acted =
      outcome == to_string(Outcome::kExecute) || outcome == to_string(Outcome::kDryRun);
  if (event.kind != event_kind::kAction || rule.empty() || !acted) {
    return;
  }
  const auto count = event.inputs.find(kActedCountInput);
  if (count == event.inputs.end()) {
    return;
  }
  // The count is in every event of a rule that acted, so that replaying one twice changes nothing.
  PolicyState::RuleState& rule_state = state.rules[rule];
  const auto acted_count = static_cast<std::int64_t>(count->second);
  if (acted_count > rule_state.acted_count) {
    rule_state = {.acted_count = acted_count, .acted_step = event.step};
  }
}

}  // namespace muster::policy
