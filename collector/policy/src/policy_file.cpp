// SPDX-License-Identifier: Apache-2.0
#include <muster/common/file.h>
#include <muster/common/text.h>
#include <muster/policy/policy.h>

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>
#include <optional>
#include <set>
#include <type_traits>
#include <utility>
#include <vector>

namespace muster::policy {

namespace {

constexpr std::size_t kFileBytesMax = std::size_t{1} << 20;
constexpr std::array kKinds{
    ActionKind::kRecord,
    ActionKind::kAlarm,
    ActionKind::kCheckpointNow,
    ActionKind::kArmQkClip,
    ActionKind::kSkipStep,
    ActionKind::kStop};

// '#' stands for a number.
struct KnownFinding {
  const char* name;
  std::array<const char*, 3> subjects;
};

constexpr std::array kFindings{
    KnownFinding{"nonfinite", {"loss", "gradient", "layer # head #"}},
    KnownFinding{"spike", {"loss", "gradient_norm"}},
    KnownFinding{"spike_persistent", {"loss", "gradient_norm"}},
    KnownFinding{"max_logit", {"layer # head #"}},
    KnownFinding{"rank_lost", {"rank #"}},
    KnownFinding{"no_progress", {"job"}},
    KnownFinding{"flat", {"loss", "gradient_norm"}},
    KnownFinding{"attention_reach_low", {"layer #"}},
    KnownFinding{"expert_imbalance", {"layer #"}},
    KnownFinding{"ep_rank_waited_for", {"EP rank #"}}};

// A mistake in the file, thrown to parse_policy.
struct Mistake {
  int line{0};  // From 1.
  std::string key;
  std::string what;
};

[[noreturn]] void refuse(const YAML::Node& node, const std::string& key, const std::string& what) {
  throw Mistake{node.Mark().line + 1, key, what};
}

// YAML reads 010 as 8.
bool looks_octal(const YAML::Node& node) {
  const std::string text = node.IsScalar() ? node.Scalar() : "";
  return text.size() > 1 && text[0] == '0' && text[1] >= '0' && text[1] <= '9';
}

template <typename T>
T read(const YAML::Node& node, const std::string& key, const char* expected) {
  if (std::is_integral_v<T> && looks_octal(node)) {
    refuse(node, key, concat("must be ", expected, " without leading zeros, got ", node.Scalar()));
  }
  if constexpr (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) {
    // YAML's own reading of numbers listens to the locale.
    if (const auto number = node.IsScalar() ? parse<T>(node.Scalar()) : std::nullopt) {
      return *number;
    }
  }
  try {
    return node.as<T>();
  } catch (const YAML::Exception&) {
    refuse(node, key, std::string{"must be "} + expected);
  }
}

void require_keys(
    const YAML::Node& map, const std::string& name, std::initializer_list<const char*> allowed) {
  if (!map.IsMap()) {
    refuse(map, name, "must be a map");
  }
  std::set<std::string> seen;
  for (const auto& entry : map) {
    const auto key = read<std::string>(entry.first, name, "a map with names as keys");
    std::string known;
    bool is_known = false;
    for (const char* name_allowed : allowed) {
      is_known = is_known || key == name_allowed;
      known += (known.empty() ? "" : ", ") + std::string{name_allowed};
    }
    if (!is_known) {
      refuse(entry.first, key, concat("is not a key of ", name, "; known are ", known));
    }
    if (!seen.insert(key).second) {
      refuse(entry.first, key, "is given twice");
    }
  }
}

std::int64_t read_count(const YAML::Node& map, const char* key, std::int64_t otherwise) {
  if (!map[key]) {
    return otherwise;
  }
  const auto count = read<std::int64_t>(map[key], key, "a whole number");
  if (count < -1 || (count == -1 && otherwise != -1)) {
    refuse(map[key], key, "must not be negative");
  }
  return count;
}

double read_positive(const YAML::Node& node, const std::string& key) {
  const auto value = read<double>(node, key, "a number");
  if (!std::isfinite(value) || value <= 0) {
    refuse(node, key, "must be greater than 0");
  }
  return value;
}

ActionKind read_kind(const YAML::Node& node) {
  const auto name = read<std::string>(node, "actions", "a list of action names");
  std::string known;
  for (const ActionKind kind : kKinds) {
    if (name == to_string(kind)) {
      return kind;
    }
    known += (known.empty() ? "" : ", ") + std::string{to_string(kind)};
  }
  refuse(node, name, "is not an action; known are " + known);
}

// "alarm", or one of {checkpoint_now: {pin: true}} and {arm_qk_clip: {tau: 100}}.
Action read_action(const YAML::Node& node, double max_logit_threshold) {
  if (node.IsMap() && node.size() != 1) {
    refuse(node, "actions", "takes one action per entry");
  }
  const bool has_options = node.IsMap();
  Action action;
  action.kind = read_kind(has_options ? node.begin()->first : node);
  const YAML::Node options = has_options ? node.begin()->second : YAML::Node{YAML::NodeType::Map};
  switch (action.kind) {
    case ActionKind::kCheckpointNow:
      require_keys(options, "checkpoint_now", {"pin"});
      action.argument =
          options["pin"] && read<bool>(options["pin"], "pin", "true or false") ? 1.0 : 0.0;
      return action;
    case ActionKind::kArmQkClip:
      require_keys(options, "arm_qk_clip", {"tau"});
      action.argument = options["tau"] ? read_positive(options["tau"], "tau") : max_logit_threshold;
      return action;
    case ActionKind::kRecord:
    case ActionKind::kAlarm:
    case ActionKind::kSkipStep:
    case ActionKind::kStop:
      require_keys(options, to_string(action.kind), {});
      return action;
  }
  return action;
}

std::string read_name(const YAML::Node& map, const char* key) {
  if (!map[key]) {
    refuse(map, key, "is missing from the rule");
  }
  auto name = read<std::string>(map[key], key, "a name");
  if (name.empty()) {
    refuse(map[key], key, "must not be empty");
  }
  return name;
}

const KnownFinding& find_finding(const YAML::Node& node, const std::string& name) {
  std::string known;
  for (const KnownFinding& finding : kFindings) {
    if (name == finding.name) {
      return finding;
    }
    known += (known.empty() ? "" : ", ") + std::string{finding.name};
  }
  refuse(node, "finding", name + " is not a finding; known are " + known);
}

// A subject that no finding can have would make a rule that is never in force.
std::string read_subject(const YAML::Node& node, const KnownFinding& finding) {
  auto subject = read<std::string>(node, "subject", "a name");
  std::string shape;
  for (const char letter : subject) {
    const bool digit = letter >= '0' && letter <= '9';
    if (!digit || shape.empty() || shape.back() != '#') {
      shape += digit ? '#' : letter;
    }
  }
  std::string known;
  for (const char* one : finding.subjects) {
    if (one != nullptr && shape == one) {
      return subject;
    }
    if (one != nullptr) {
      std::string example = one;
      std::replace(example.begin(), example.end(), '#', '0');
      known += (known.empty() ? "" : ", ") + example;
    }
  }
  if (subject.empty()) {
    return subject;  // Any.
  }
  refuse(
      node,
      "subject",
      concat("'", subject, "' is no subject of ", finding.name, "; such are ", known));
}

Rule read_rule(const YAML::Node& map, double max_logit_threshold) {
  require_keys(
      map,
      "rule",
      {"name",
       "finding",
       "subject",
       "actions",
       "cooldown_steps",
       "budget",
       "expires_steps",
       "dry_run"});
  Rule rule;
  rule.name = read_name(map, "name");
  rule.finding = read_name(map, "finding");
  const KnownFinding& finding = find_finding(map["finding"], rule.finding);
  if (map["subject"]) {
    rule.subject = read_subject(map["subject"], finding);
  }
  rule.cooldown_steps = read_count(map, "cooldown_steps", 0);
  rule.budget = read_count(map, "budget", -1);
  rule.expires_steps = read_count(map, "expires_steps", -1);
  if (!map["actions"] || !map["actions"].IsSequence() || map["actions"].size() == 0) {
    refuse(map["actions"] ? map["actions"] : map, "actions", "must be a list of actions");
  }
  for (const YAML::Node& node : map["actions"]) {
    Action action = read_action(node, max_logit_threshold);
    // An action that ends a run defaults to a dry run; the file must disable that explicitly.
    action.dry_run = map["dry_run"] ? read<bool>(map["dry_run"], "dry_run", "true or false")
                                    : action.kind == ActionKind::kStop;
    rule.actions.push_back(action);
  }
  return rule;
}

// A number greater than 0 in place of the default, where the map has the key.
void read_number(const YAML::Node& map, const char* key, double& number) {
  if (map[key]) {
    number = read_positive(map[key], key);
  }
}

// A share in (0, 1].
void read_share(const YAML::Node& map, const char* key, double& share) {
  read_number(map, key, share);
  if (share > 1) {
    refuse(map[key], key, "is a share and must not be greater than 1");
  }
}

void read_steps(const YAML::Node& map, int& steps) {
  if (!map["steps"]) {
    return;
  }
  steps = read<int>(map["steps"], "steps", "a whole number");
  if (steps < 1) {
    refuse(map["steps"], "steps", "must be 1 or more");
  }
}

void read_detectors(const YAML::Node& map, Policy& policy) {
  require_keys(map, "detectors", {"attention_reach_low", "expert_imbalance", "ep_rank_waited_for"});
  if (const YAML::Node reach = map["attention_reach_low"]) {
    require_keys(reach, "attention_reach_low", {"block_reach", "query_reach", "steps"});
    read_share(reach, "block_reach", policy.reach.block_reach);
    read_share(reach, "query_reach", policy.reach.query_reach);
    read_steps(reach, policy.reach.steps);
  }
  if (const YAML::Node imbalance = map["expert_imbalance"]) {
    require_keys(imbalance, "expert_imbalance", {"z", "maxvio_z", "steps"});
    read_number(imbalance, "z", policy.expert_imbalance.z);
    read_number(imbalance, "maxvio_z", policy.expert_imbalance.maxvio_z);
    read_steps(imbalance, policy.expert_imbalance.steps);
  }
  if (const YAML::Node wait = map["ep_rank_waited_for"]) {
    require_keys(wait, "ep_rank_waited_for", {"mads", "steps"});
    read_number(wait, "mads", policy.wait.mads);
    read_steps(wait, policy.wait.steps);
  }
}

Policy read_policy(const YAML::Node& root) {
  require_keys(root, "policy", {"version", "max_logit_threshold", "detectors", "rules"});
  if (!root["version"] || read<int>(root["version"], "version", "the number 1") != 1) {
    refuse(root["version"] ? root["version"] : root, "version", "must be 1");
  }
  Policy policy;
  if (root["max_logit_threshold"]) {
    policy.max_logit_threshold = read_positive(root["max_logit_threshold"], "max_logit_threshold");
  }
  if (root["detectors"]) {
    read_detectors(root["detectors"], policy);
  }
  if (!root["rules"] || !root["rules"].IsSequence()) {
    refuse(root["rules"] ? root["rules"] : root, "rules", "must be a list of rules");
  }
  std::set<std::string> names;
  for (const YAML::Node& node : root["rules"]) {
    policy.rules.push_back(read_rule(node, policy.max_logit_threshold));
    if (!names.insert(policy.rules.back().name).second) {
      refuse(node["name"], "name", policy.rules.back().name + " is the name of two rules");
    }
  }
  return policy;
}

}  // namespace

Expected<Policy> parse_policy(std::string_view yaml, const std::string& source) {
  const auto invalid = [&source](int line, const std::string& what) {
    // YAML has no position for what is missing, such as the root of an empty file.
    return invalid_argument(source, ":", std::max(line, 1), ": ", what);
  };
  try {
    const std::vector<YAML::Node> documents = YAML::LoadAll(std::string{yaml});
    if (documents.size() > 1) {
      refuse(
          documents[1], "---", "begins a second document, which would not be in force; join them");
    }
    return read_policy(documents.empty() ? YAML::Node{} : documents[0]);
  } catch (const Mistake& mistake) {
    return invalid(mistake.line, mistake.key + ": " + mistake.what);
  } catch (const YAML::Exception& error) {
    return invalid(error.mark.line + 1, "not valid YAML: " + error.msg);
  }
}

Expected<Policy> load_policy(const std::filesystem::path& path) {
  Expected<std::string> text = read_file(path, kFileBytesMax);
  if (!text) {
    return text.status().context("policy");
  }
  return parse_policy(text.value(), path.string());
}

}  // namespace muster::policy
