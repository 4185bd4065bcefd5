// SPDX-License-Identifier: Apache-2.0
#include <muster/policy/policy.h>

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

namespace muster::policy {

namespace {

const std::string kHead = "version: 1\nrules:\n";

std::string error_of(const std::string& yaml) {
  const auto policy = parse_policy(yaml, "p.yaml");
  EXPECT_FALSE(policy.ok());
  EXPECT_EQ(policy.status().code(), StatusCode::kInvalidArgument);
  return policy.status().message();
}

}  // namespace

TEST(PolicyFile, ExampleIsTheBuiltInPolicy) {
  const auto policy = load_policy(MUSTER_EXAMPLE_POLICY);
  ASSERT_TRUE(policy.ok()) << policy.status().to_string();
  EXPECT_EQ(policy.value(), default_policy());
}

TEST(PolicyFile, MissingFileIsNamed) {
  const auto policy = load_policy("/nowhere/policy.yaml");
  ASSERT_FALSE(policy.ok());
  EXPECT_EQ(policy.status().code(), StatusCode::kNotFound);
  EXPECT_NE(policy.status().message().find("/nowhere/policy.yaml"), std::string::npos);
}

TEST(PolicyFile, DirectoryIsRefused) {
  EXPECT_FALSE(load_policy(std::filesystem::temp_directory_path()).ok());
}

TEST(PolicyFile, AnEmptyFileIsRefusedAtItsFirstLine) {
  EXPECT_EQ(error_of(""), "p.yaml:1: policy: must be a map");
}

TEST(PolicyFile, ASubjectThatNoFindingCanHaveIsRefusedWithThoseItCan) {
  const auto rule = [](const std::string& finding, const std::string& subject) {
    return kHead + "  - {name: a, finding: " + finding + ", subject: \"" + subject +
           "\", actions: [alarm]}\n";
  };
  EXPECT_EQ(
      error_of(rule("spike", "los")),
      "p.yaml:3: subject: 'los' is no subject of spike; such are loss, gradient_norm");
  EXPECT_EQ(
      error_of(rule("max_logit", "layer 3")),
      "p.yaml:3: subject: 'layer 3' is no subject of max_logit; such are layer 0 head 0");
  EXPECT_TRUE(parse_policy(rule("max_logit", "layer 13 head 0"), "p.yaml").ok());
  EXPECT_TRUE(parse_policy(rule("ep_rank_waited_for", "EP rank 12"), "p.yaml").ok());
  EXPECT_TRUE(parse_policy(rule("nonfinite", "gradient"), "p.yaml").ok());
}

TEST(PolicyFile, ASecondDocumentIsRefusedAtItsLine) {
  const std::string one = kHead + "  - {name: a, finding: spike, actions: [alarm]}\n";
  EXPECT_EQ(
      error_of(one + "---\n" + one),
      "p.yaml:5: ---: begins a second document, which would not be in force; join them");
}

TEST(PolicyFile, ANumberWithLeadingZerosIsRefused) {
  EXPECT_EQ(
      error_of(kHead + "  - {name: a, finding: spike, actions: [alarm], cooldown_steps: 010}\n"),
      "p.yaml:3: cooldown_steps: must be a whole number without leading zeros, got 010");
  EXPECT_EQ(
      error_of(kHead + "  - {name: a, finding: spike, actions: [alarm], cooldown_steps: 09}\n"),
      "p.yaml:3: cooldown_steps: must be a whole number without leading zeros, got 09");
}

TEST(PolicyFile, StopIsADryRunUnlessTheFileMeansIt) {
  const auto rehearsed = parse_policy(
      kHead + "  - {name: a, finding: no_progress, actions: [alarm, stop]}\n", "p.yaml");
  ASSERT_TRUE(rehearsed.ok()) << rehearsed.status().to_string();
  EXPECT_FALSE(rehearsed.value().rules[0].actions[0].dry_run);
  EXPECT_TRUE(rehearsed.value().rules[0].actions[1].dry_run);
  const auto meant = parse_policy(
      kHead + "  - {name: a, finding: no_progress, actions: [stop], dry_run: false}\n", "p.yaml");
  ASSERT_TRUE(meant.ok()) << meant.status().to_string();
  EXPECT_FALSE(meant.value().rules[0].actions[0].dry_run);
}

TEST(PolicyFile, ClipWithoutTauTakesTheThreshold) {
  const auto policy = parse_policy(
      "version: 1\nmax_logit_threshold: 50\nrules:\n"
      "  - {name: a, finding: max_logit, actions: [arm_qk_clip]}\n",
      "p.yaml");
  ASSERT_TRUE(policy.ok()) << policy.status().to_string();
  EXPECT_EQ(policy.value().rules[0].actions[0].argument, 50.0);
}

TEST(PolicyFile, DetectorsKeepWhatTheFileLeavesOut) {
  const auto policy = parse_policy(
      "version: 1\ndetectors:\n  attention_reach_low: {block_reach: 0.3}\n"
      "  ep_rank_waited_for: {mads: 4, steps: 10}\nrules: []\n",
      "p.yaml");
  ASSERT_TRUE(policy.ok()) << policy.status().to_string();
  EXPECT_EQ(policy.value().reach.block_reach, 0.3);
  EXPECT_EQ(policy.value().reach.query_reach, default_policy().reach.query_reach);
  EXPECT_EQ(policy.value().reach.steps, 32);
  EXPECT_EQ(policy.value().wait.mads, 4.0);
  EXPECT_EQ(policy.value().wait.steps, 10);
  EXPECT_EQ(policy.value().expert_imbalance, default_policy().expert_imbalance);
}

TEST(PolicyFile, DetectorsThatMakeNoSenseAreNamedWithTheirLine) {
  const auto error = [](const std::string& detectors) {
    return error_of("version: 1\ndetectors:\n  " + detectors + "\nrules: []\n");
  };
  EXPECT_TRUE(error("spike: {z: 4}").starts_with("p.yaml:3: spike: "));
  EXPECT_TRUE(error("attention_reach_low: {share: 1}").starts_with("p.yaml:3: share: "));
  EXPECT_TRUE(
      error("attention_reach_low: {query_reach: 1.5}").starts_with("p.yaml:3: query_reach: "));
  EXPECT_TRUE(error("expert_imbalance: {steps: 0}").starts_with("p.yaml:3: steps: "));
  EXPECT_TRUE(error("ep_rank_waited_for: {mads: -1}").starts_with("p.yaml:3: mads: "));
}

TEST(PolicyFile, UnknownKeyIsNamedWithItsLine) {
  const std::string error =
      error_of(kHead + "  - name: a\n    finding: spike\n    cooldown: 5\n    actions: [alarm]\n");
  EXPECT_TRUE(error.starts_with("p.yaml:5: cooldown: ")) << error;
}

TEST(PolicyFile, UnknownFindingIsNamedWithItsLine) {
  const std::string error =
      error_of(kHead + "  - name: a\n    finding: spikes\n    actions: [alarm]\n");
  EXPECT_TRUE(error.starts_with("p.yaml:4: finding: spikes ")) << error;
}

TEST(PolicyFile, UnknownActionIsNamedWithItsLine) {
  const std::string error =
      error_of(kHead + "  - name: a\n    finding: spike\n    actions: [alarm, panic]\n");
  EXPECT_TRUE(error.starts_with("p.yaml:5: panic: ")) << error;
  EXPECT_NE(error.find("known are record, alarm, checkpoint_now, "), std::string::npos) << error;
}

TEST(PolicyFile, AnUnknownOptionOfAnActionIsNamedWithItsLine) {
  for (const char* action :
       {"arm_qk_clip: {tow: 50}", "checkpoint_now: {pim: true}", "alarm: {x: 1}"}) {
    const std::string error =
        error_of(kHead + "  - name: a\n    finding: spike\n    actions: [" + action + "]\n");
    EXPECT_TRUE(error.starts_with("p.yaml:5: ")) << action << ": " << error;
  }
}

TEST(PolicyFile, ARuleWithoutANameIsRefused) {
  const std::string error =
      error_of(kHead + "  - name: \"\"\n    finding: spike\n    actions: [alarm]\n");
  EXPECT_TRUE(error.starts_with("p.yaml:3: name: must not be empty")) << error;
}

TEST(PolicyFile, WrongTypeIsNamedWithItsLine) {
  const std::string error =
      error_of(kHead + "  - name: a\n    finding: spike\n    budget: many\n    actions: [alarm]\n");
  EXPECT_TRUE(error.starts_with("p.yaml:5: budget: ")) << error;
}

TEST(PolicyFile, NegativeCooldownIsRefused) {
  EXPECT_TRUE(
      error_of(kHead + "  - {name: a, finding: spike, actions: [alarm], cooldown_steps: -1}\n")
          .starts_with("p.yaml:3: cooldown_steps: "));
}

TEST(PolicyFile, TauMustBePositive) {
  EXPECT_TRUE(
      error_of(kHead + "  - {name: a, finding: max_logit, actions: [arm_qk_clip: {tau: 0}]}\n")
          .starts_with("p.yaml:3: tau: "));
}

TEST(PolicyFile, TwoRulesOfOneNameAreRefused) {
  EXPECT_TRUE(error_of(
                  kHead + "  - {name: a, finding: spike, actions: [alarm]}\n" +
                  "  - {name: a, finding: nonfinite, actions: [alarm]}\n")
                  .starts_with("p.yaml:4: name: a "));
}

TEST(PolicyFile, RuleWithoutActionsIsRefused) {
  EXPECT_TRUE(error_of(kHead + "  - {name: a, finding: spike, actions: []}\n")
                  .starts_with("p.yaml:3: actions: "));
}

TEST(PolicyFile, OtherVersionIsRefused) {
  EXPECT_TRUE(error_of("version: 2\nrules: []\n").starts_with("p.yaml:1: version: "));
}

TEST(PolicyFile, BrokenYamlNamesTheLine) {
  EXPECT_TRUE(error_of("version: 1\nrules: [\n").starts_with("p.yaml:"));
  EXPECT_TRUE(error_of("").starts_with("p.yaml:"));
  EXPECT_TRUE(error_of("just text").starts_with("p.yaml:1: policy: "));
}

}  // namespace muster::policy
