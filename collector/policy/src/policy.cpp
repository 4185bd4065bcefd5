// SPDX-License-Identifier: Apache-2.0
#include <muster/policy/policy.h>

namespace muster::policy {

const char* to_string(ActionKind kind) {
  switch (kind) {
    case ActionKind::kRecord:
      return "record";
    case ActionKind::kAlarm:
      return "alarm";
    case ActionKind::kCheckpointNow:
      return "checkpoint_now";
    case ActionKind::kArmQkClip:
      return "arm_qk_clip";
    case ActionKind::kSkipStep:
      return "skip_step";
    case ActionKind::kStop:
      return "stop";
  }
  return "unknown";
}

Policy default_policy() {
  const auto rule = [](const char* name, const char* finding, std::vector<Action> actions) {
    Rule made;
    made.name = name;
    made.finding = finding;
    made.actions = std::move(actions);
    return made;
  };
  Policy policy;
  policy.max_logit_threshold = 100.0;
  policy.rules = {
      rule("record_nonfinite", "nonfinite", {{ActionKind::kRecord}}),
      rule("record_spike", "spike", {{ActionKind::kRecord}}),
      rule(
          "guard_spike",
          "spike_persistent",
          {{ActionKind::kAlarm}, {ActionKind::kCheckpointNow, 1.0}}),
      rule("clip_logits", "max_logit", {{ActionKind::kArmQkClip, 100.0}}),
      rule("alarm_rank_lost", "rank_lost", {{ActionKind::kAlarm}}),
      rule("alarm_no_progress", "no_progress", {{ActionKind::kAlarm}}),
      rule("record_reach", "attention_reach_low", {{ActionKind::kRecord}}),
      rule("record_imbalance", "expert_imbalance", {{ActionKind::kRecord}}),
      rule("record_straggler", "ep_rank_waited_for", {{ActionKind::kRecord}})};
  Rule& guard = policy.rules[2];
  guard.cooldown_steps = 200;
  guard.budget = 20;
  guard.expires_steps = 100;
  Rule& clip = policy.rules[3];
  clip.cooldown_steps = 1000;
  clip.budget = 10;
  return policy;
}

}  // namespace muster::policy
