// SPDX-License-Identifier: Apache-2.0
// Rules that answer findings with actions, read from a YAML file or built in.
//
// A rule matches findings by name and plans actions; a cooldown in steps and a budget per run keep
// a noisy detector from flooding the job. Deciding is pure: no clock, no I/O, state is passed in
// and out as a value. Nothing here is thread-safe; the owner serialises calls.
// docs/concepts/detectors.md shows the format.
#pragma once

#include <muster/common/expected.h>
#include <muster/common/telemetry.h>
#include <muster/detect/detector.h>
#include <muster/detect/expert_imbalance_detector.h>
#include <muster/detect/reach_detector.h>
#include <muster/detect/wait_detector.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace muster::policy {

enum class ActionKind : std::uint8_t {
  kRecord,         // The finding's own event is enough.
  kAlarm,          // An event of severity kError that people must see.
  kCheckpointNow,  // CommandKind::kCheckpointNow; `argument` 1 pins it against retention.
  kArmQkClip,      // CommandKind::kSetQkClipThreshold; `argument` = tau.
  kSkipStep,       // CommandKind::kSkipStep.
  kStop,           // CommandKind::kStop. Destructive: dry run unless the file sets dry_run: false.
};

// Returns "record", "alarm", "checkpoint_now", "arm_qk_clip", "skip_step" or "stop", as in the
// file.
[[nodiscard]] const char* to_string(ActionKind kind);

struct Action {
  ActionKind kind{ActionKind::kRecord};
  double argument{0};
  bool dry_run{false};  // Planned, counted and recorded, but not executed.

  friend bool operator==(const Action&, const Action&) = default;
};

struct Rule {
  std::string name;     // Unique in the policy; commands are issued as "policy:<name>".
  std::string finding;  // Finding::rule it answers.
  std::string subject;  // Finding::subject it answers; if empty, every subject.
  std::vector<Action> actions;
  std::int64_t cooldown_steps{0};  // Pause after it acted.
  std::int64_t budget{-1};         // Acts at most this often per run; -1 removes the limit.
  // Its commands expire this many steps after the finding; with -1 they never expire.
  std::int64_t expires_steps{-1};

  friend bool operator==(const Rule&, const Rule&) = default;
};

struct Policy {
  double max_logit_threshold{100.0};  // tau of the "max_logit" finding.
  // Options of the "attention_reach_low", "expert_imbalance" and "ep_rank_waited_for" detectors.
  detect::ReachOptions reach;
  detect::ExpertImbalanceOptions expert_imbalance;
  detect::WaitOptions wait;
  std::vector<Rule> rules;

  friend bool operator==(const Policy&, const Policy&) = default;
};

// Returns the built-in policy; examples/policy.yaml is its text.
[[nodiscard]] Policy default_policy();

// `source` names the text in errors. kInvalidArgument: "<source>:<line>: <key>: <what is wrong>".
[[nodiscard]] Expected<Policy> parse_policy(std::string_view yaml, const std::string& source);

// Reads a file as parse_policy does. kNotFound if it does not exist.
[[nodiscard]] Expected<Policy> load_policy(const std::filesystem::path& path);

enum class Outcome : std::uint8_t {
  kExecute,   // Issue the command.
  kDryRun,    // Record only; without dry_run the command would be issued.
  kCooldown,  // The rule acted too few steps ago.
  kBudget,    // The rule has used up its budget for this run.
};

// Returns "execute", "dry_run", "cooldown" or "budget".
[[nodiscard]] const char* to_string(Outcome outcome);

struct PlannedAction {
  std::string rule;  // Rule::name.
  Action action;
  Outcome outcome{Outcome::kExecute};
  std::int64_t expires_step{-1};
  std::int64_t acted_count{0};  // Times the rule has acted in this run, this one included.
  std::string reason;           // For people: the finding, and why the action runs or is held back.
};

// A policy's memory of one run. A value: copy it to fork a simulation.
struct PolicyState {
  struct RuleState {
    std::int64_t acted_count{0};
    std::int64_t acted_step{-1};  // -1 before the first time, or if not tied to a step.

    friend bool operator==(const RuleState&, const RuleState&) = default;
  };

  std::map<std::string, RuleState> rules;  // By Rule::name.

  friend bool operator==(const PolicyState&, const PolicyState&) = default;
};

// Returns one entry per action of every matching rule, in file order. A rule acts as a whole:
// cooldown and budget count rules, not actions. Dry runs count like real ones, so that a rehearsal
// shows what would happen. A finding at a lower step than the last one (the run was rewound) is not
// held back by the cooldown, only by the budget.
[[nodiscard]] std::vector<PlannedAction> decide(
    const Policy& policy, const detect::Finding& finding, PolicyState& state);

// Returns the command to issue; nullopt for record, alarm and actions held back. The store assigns
// id and epoch.
[[nodiscard]] std::optional<Command> to_command(const PlannedAction& planned);

// Return the events that record a finding (kind "finding") and a planned action (kind "action",
// labels rule, action, outcome). Both carry the finding's inputs.
[[nodiscard]] Event to_event(const detect::Finding& finding, std::int64_t wall_unix_ns);
[[nodiscard]] Event to_event(
    const PlannedAction& planned, const detect::Finding& finding, std::int64_t wall_unix_ns);

// Rebuilds state from stored "action" events, given in order, so that budgets and cooldowns outlive
// a restart of the collector. Other events are ignored.
void replay(const Event& event, PolicyState& state);

}  // namespace muster::policy
