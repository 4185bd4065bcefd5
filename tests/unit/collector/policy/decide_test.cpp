// SPDX-License-Identifier: Apache-2.0
#include <muster/policy/policy.h>

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace muster::policy {

namespace {

detect::Finding finding_at(std::int64_t step, const char* rule = "spike_persistent") {
  detect::Finding finding;
  finding.rule = rule;
  finding.severity = Severity::kError;
  finding.step = step;
  finding.subject = "loss";
  finding.reason = "loss is high";
  finding.inputs = {{"z", 9.0}};
  return finding;
}

std::vector<Outcome> outcomes(const std::vector<PlannedAction>& planned) {
  std::vector<Outcome> result;
  for (const PlannedAction& entry : planned) {
    result.push_back(entry.outcome);
  }
  return result;
}

}  // namespace

TEST(Policy, NonfiniteIsOnlyRecorded) {
  PolicyState state;
  const auto planned = decide(default_policy(), finding_at(5, "nonfinite"), state);
  ASSERT_EQ(planned.size(), 1U);
  EXPECT_EQ(planned[0].action.kind, ActionKind::kRecord);
  EXPECT_FALSE(to_command(planned[0]).has_value());
}

TEST(Policy, ACommandForTheFirstStepExpiresToo) {
  PolicyState state;
  const auto planned = decide(default_policy(), finding_at(0), state);
  ASSERT_EQ(planned.size(), 2U);
  EXPECT_EQ(to_command(planned[1])->expires_step, 100);
}

TEST(Policy, ARuleWithABudgetOfNothingNeverActs) {
  Policy policy = default_policy();
  for (Rule& rule : policy.rules) {
    rule.budget = 0;
  }
  PolicyState state;
  EXPECT_EQ(
      outcomes(decide(policy, finding_at(5, "nonfinite"), state)), std::vector{Outcome::kBudget});
}

TEST(Policy, FindingsAboutReachAndExpertsOnlyNotify) {
  for (const char* rule : {"attention_reach_low", "expert_imbalance", "ep_rank_waited_for"}) {
    PolicyState state;
    const auto planned = decide(default_policy(), finding_at(5, rule), state);
    ASSERT_EQ(planned.size(), 1U) << rule;
    EXPECT_EQ(planned[0].action.kind, ActionKind::kRecord) << rule;
    EXPECT_FALSE(to_command(planned[0]).has_value()) << rule;
  }
}

TEST(Policy, PersistentSpikeAlarmsAndPinsACheckpoint) {
  PolicyState state;
  const auto planned = decide(default_policy(), finding_at(500), state);
  ASSERT_EQ(planned.size(), 2U);
  EXPECT_EQ(planned[0].action.kind, ActionKind::kAlarm);
  const auto command = to_command(planned[1]);
  ASSERT_TRUE(command.has_value());
  EXPECT_EQ(command->kind, CommandKind::kCheckpointNow);
  EXPECT_EQ(command->argument, 1.0);
  EXPECT_EQ(command->expires_step, 600);
  EXPECT_EQ(command->issuer, "policy:guard_spike");
  EXPECT_NE(command->reason.find("loss is high"), std::string::npos);
}

TEST(Policy, LogitOverTauArmsTheClip) {
  PolicyState state;
  const auto planned = decide(default_policy(), finding_at(7, "max_logit"), state);
  ASSERT_EQ(planned.size(), 1U);
  const auto command = to_command(planned[0]);
  ASSERT_TRUE(command.has_value());
  EXPECT_EQ(command->kind, CommandKind::kSetQkClipThreshold);
  EXPECT_EQ(command->argument, 100.0);
  EXPECT_EQ(command->expires_step, -1);
}

TEST(Policy, UnknownFindingPlansNothing) {
  PolicyState state;
  EXPECT_TRUE(decide(default_policy(), finding_at(1, "other"), state).empty());
  EXPECT_EQ(state, PolicyState{});
}

TEST(Policy, RuleWithASubjectLeavesOthersAlone) {
  Policy policy = default_policy();
  policy.rules[2].subject = "gradient_norm";
  PolicyState state;
  EXPECT_TRUE(decide(policy, finding_at(1), state).empty());
}

TEST(Policy, CooldownHoldsTheWholeRuleBack) {
  PolicyState state;
  const Policy policy = default_policy();
  EXPECT_EQ(
      outcomes(decide(policy, finding_at(1000), state)),
      (std::vector{Outcome::kExecute, Outcome::kExecute}));
  const auto held = decide(policy, finding_at(1199), state);
  EXPECT_EQ(outcomes(held), (std::vector{Outcome::kCooldown, Outcome::kCooldown}));
  EXPECT_FALSE(to_command(held[1]).has_value());
  EXPECT_EQ(
      outcomes(decide(policy, finding_at(1200), state)),
      (std::vector{Outcome::kExecute, Outcome::kExecute}));
}

TEST(Policy, CooldownDoesNotOutliveARewind) {
  PolicyState state;
  const Policy policy = default_policy();
  static_cast<void>(decide(policy, finding_at(1000), state));
  EXPECT_EQ(outcomes(decide(policy, finding_at(900), state))[0], Outcome::kExecute);
}

TEST(Policy, BudgetOfARunEnds) {
  PolicyState state;
  Policy policy = default_policy();
  policy.rules[2].budget = 2;
  for (std::int64_t i = 0; i < 2; ++i) {
    EXPECT_EQ(outcomes(decide(policy, finding_at(1000 * i), state))[1], Outcome::kExecute);
  }
  const auto held = decide(policy, finding_at(5000), state);
  EXPECT_EQ(outcomes(held)[1], Outcome::kBudget);
  EXPECT_NE(held[1].reason.find("budget of 2"), std::string::npos);
}

TEST(Policy, DryRunIsPlannedCountedAndNotCarriedOut) {
  Policy policy;
  policy.rules.push_back(
      {.name = "end",
       .finding = "no_progress",
       .subject = "",
       .actions = {{ActionKind::kStop, 0.0, true}},
       .cooldown_steps = 0,
       .budget = 1,
       .expires_steps = -1});
  PolicyState state;
  const auto planned = decide(policy, finding_at(3, "no_progress"), state);
  EXPECT_EQ(outcomes(planned), (std::vector{Outcome::kDryRun}));
  EXPECT_FALSE(to_command(planned[0]).has_value());
  EXPECT_EQ(
      outcomes(decide(policy, finding_at(4, "no_progress"), state)),
      (std::vector{Outcome::kBudget}));
}

TEST(Policy, ActionEventCarriesReasonInputsAndOutcome) {
  PolicyState state;
  const detect::Finding finding = finding_at(500);
  const auto planned = decide(default_policy(), finding, state);
  const Event event = to_event(planned[0], finding, 77);
  EXPECT_EQ(event.kind, event_kind::kAction);
  EXPECT_EQ(event.severity, Severity::kError);
  EXPECT_EQ(event.step, 500);
  EXPECT_EQ(event.wall_unix_ns, 77);
  EXPECT_EQ(event.inputs.at("z"), 9.0);
  EXPECT_EQ(event.labels.at("rule"), "guard_spike");
  EXPECT_EQ(event.labels.at("action"), "alarm");
  EXPECT_EQ(event.labels.at("outcome"), "execute");
  EXPECT_EQ(event.labels.at("finding"), "spike_persistent");
  EXPECT_EQ(to_event(finding, 77).kind, event_kind::kFinding);
}

TEST(Policy, StateIsRebuiltFromStoredEvents) {
  const Policy policy = default_policy();
  PolicyState state;
  PolicyState rebuilt;
  for (const std::int64_t step : {100, 150, 400, 390, 2000}) {
    for (const char* rule : {"spike_persistent", "max_logit"}) {
      const detect::Finding finding = finding_at(step, rule);
      replay(to_event(finding, 0), rebuilt);
      for (const PlannedAction& planned : decide(policy, finding, state)) {
        replay(to_event(planned, finding, 0), rebuilt);
        replay(to_event(planned, finding, 0), rebuilt);
      }
    }
  }
  EXPECT_EQ(rebuilt, state);
}

}  // namespace muster::policy
