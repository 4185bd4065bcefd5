// SPDX-License-Identifier: Apache-2.0
#include "agent/src/checkpoint/rank_state.h"
#include "agent/src/runtime/step_events.h"
#include "tests/unit/agent/train_group.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <limits>

namespace muster::agent {
namespace {

// Sets variables for one test and clears all of ours before and after.
class Environment : public testing::Test {
 protected:
  Environment() { clear(); }

  ~Environment() override { clear(); }

  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;
  Environment(Environment&&) = delete;
  Environment& operator=(Environment&&) = delete;

  static void set(const char* name, const std::string& value) { ::setenv(name, value.c_str(), 1); }

  static void expect_refused(const std::string& name) {
    const auto options = AgentOptions::from_environment();
    ASSERT_FALSE(options.ok());
    EXPECT_NE(options.status().message().find(name), std::string::npos)
        << options.status().to_string();
  }

 private:
  static void clear() {
    for (const char* name :
         {"RANK",
          "WORLD_SIZE",
          "MUSTER_RUN_ID",
          "MUSTER_GENERATION",
          "MUSTER_INCARNATION",
          "MUSTER_RUN_UID",
          "MUSTER_COLLECTOR",
          "MUSTER_TOKEN_FILE",
          "MUSTER_RESUME_FROM",
          "MUSTER_CHECKPOINT_ROOT",
          "MUSTER_SPOOL",
          "MUSTER_COLLECTIVE_TIMEOUT",
          "MUSTER_ALLOW_ATTENTION_CHANGE"}) {
      ::unsetenv(name);
    }
  }
};

TEST_F(Environment, WithoutVariablesItIsAWorldOfOne) {
  const auto options = AgentOptions::from_environment();
  ASSERT_TRUE(options.ok()) << options.status().to_string();
  EXPECT_EQ(options->identity.run_id, "local");
  EXPECT_EQ(options->world_size, 1);
  EXPECT_EQ(options->identity.generation, Generation{1});
  EXPECT_EQ(options->identity.incarnation.size(), 32U);
  EXPECT_TRUE(options->collector.empty());
}

TEST_F(Environment, ReadsWhatTheLauncherSets) {
  const ScratchFolder folder;
  const auto token = folder.path() / "token";
  std::ofstream{token} << "secret\n";
  set("RANK", "2");
  set("WORLD_SIZE", "4");
  set("MUSTER_RUN_ID", "moby");
  set("MUSTER_GENERATION", "7");
  set("MUSTER_INCARNATION", "abc");
  set("MUSTER_RUN_UID", "uid");
  set("MUSTER_COLLECTOR", "127.0.0.1:7700");
  set("MUSTER_TOKEN_FILE", token.string());
  set("MUSTER_RESUME_FROM", "/checkpoints/step-3.gen-6");
  set("MUSTER_CHECKPOINT_ROOT", "/checkpoints");
  set("MUSTER_SPOOL", "/spool");
  const auto options = AgentOptions::from_environment();
  ASSERT_TRUE(options.ok()) << options.status().to_string();
  EXPECT_EQ(options->identity, (Identity{"moby", Generation{7}, Rank{2}, "abc", "uid"}));
  EXPECT_EQ(options->world_size, 4);
  EXPECT_EQ(options->token, "secret");
  EXPECT_EQ(options->collector, "127.0.0.1:7700");
  EXPECT_EQ(options->resume_from, "/checkpoints/step-3.gen-6");
  EXPECT_EQ(options->checkpoint_root, "/checkpoints");
  EXPECT_EQ(options->spool_directory, "/spool");
}

TEST_F(Environment, CollectiveTimeoutIsInWholeSeconds) {
  set("MUSTER_COLLECTIVE_TIMEOUT", "7");
  const auto options = AgentOptions::from_environment();
  ASSERT_TRUE(options.ok()) << options.status().to_string();
  EXPECT_EQ(options->collective_timeout, std::chrono::seconds{7});
  for (const char* bad : {"0", "-1", "1.5", "soon"}) {
    set("MUSTER_COLLECTIVE_TIMEOUT", bad);
    expect_refused("MUSTER_COLLECTIVE_TIMEOUT");
  }
}

TEST_F(Environment, AnotherAttentionScheduleIsAllowedOnlyOnRequest) {
  EXPECT_FALSE(AgentOptions::from_environment().value().allow_attention_change);
  set("MUSTER_ALLOW_ATTENTION_CHANGE", "0");
  EXPECT_FALSE(AgentOptions::from_environment().value().allow_attention_change);
  set("MUSTER_ALLOW_ATTENTION_CHANGE", "1");
  EXPECT_TRUE(AgentOptions::from_environment().value().allow_attention_change);
  set("MUSTER_ALLOW_ATTENTION_CHANGE", "yes");
  expect_refused("MUSTER_ALLOW_ATTENTION_CHANGE");
}

TEST_F(Environment, NamesTheVariableThatDoesNotParse) {
  set("RANK", "0");
  set("WORLD_SIZE", "four");
  expect_refused("WORLD_SIZE='four'");
}

TEST_F(Environment, RankOutsideTheWorldIsRefused) {
  set("RANK", "4");
  set("WORLD_SIZE", "4");
  expect_refused("RANK='4'");
}

TEST_F(Environment, WorldSizeWithoutRankIsRefused) {
  set("WORLD_SIZE", "4");
  expect_refused("RANK");
}

TEST_F(Environment, GenerationZeroIsRefused) {
  set("MUSTER_GENERATION", "0");
  expect_refused("MUSTER_GENERATION");
}

TEST_F(Environment, MissingTokenFileIsNamed) {
  set("MUSTER_TOKEN_FILE", "/no/such/token");
  expect_refused("/no/such/token");
}

TEST(SharedStateText, ComesBackBitForBitWithNothingInFlight) {
  SharedState state;
  state.step = 123;
  state.qk_clip_threshold = 0.1 + 0.2;
  state.last_applied_command = std::numeric_limits<std::uint64_t>::max();
  state.checkpoint_sequence = 9;
  state.skipped_steps = 4;
  state.clipped_heads = 71;
  state.guard = {0.1, 1.0 / 3.0, 25, 32768.0, 1999, 1};
  SharedState in_flight = state;
  in_flight.checkpoint_in_flight = 9;
  in_flight.checkpoint_wanted = true;
  in_flight.stopping = true;
  TextValues values;
  write_shared_state(in_flight, values);
  const auto back = read_shared_state(values);
  ASSERT_TRUE(back.ok()) << back.status().to_string();
  EXPECT_EQ(*back, state);
}

TEST(SharedStateText, NamesAMissingAndADamagedValue) {
  TextValues values;
  write_shared_state(SharedState{}, values);
  values["agent.skipped_steps"] = "4x";
  EXPECT_NE(read_shared_state(values).status().message().find("4x"), std::string::npos);
  values.erase("agent.step");
  EXPECT_NE(read_shared_state(values).status().message().find("agent.step"), std::string::npos);
}

// A checkpoint of the first version: no fp16, no ZClip, nothing counted.
TEST(SharedStateText, GuardsThatWereNeverSavedStartAfresh) {
  SharedState state;
  state.step = 5;
  TextValues values;
  write_shared_state(state, values);
  for (const char* key :
       {"agent.clipped_heads",
        "agent.zclip_mean",
        "agent.zclip_variance",
        "agent.zclip_steps",
        "agent.loss_scale",
        "agent.loss_scale_clean_steps",
        "agent.loss_scale_hysteresis_left"}) {
    EXPECT_EQ(values.erase(key), 1U) << key;
  }
  const auto back = read_shared_state(values);
  ASSERT_TRUE(back.ok()) << back.status().to_string();
  EXPECT_EQ(*back, state);
  values["agent.loss_scale"] = "big";
  EXPECT_NE(read_shared_state(values).status().message().find("big"), std::string::npos);
}

TEST(StepEvents, ClipsAreToldWhenTheySetInAndNotEveryStep) {
  StepEvents events;
  Verdict clipped;
  clipped.clip_factor = 0.5;
  const Verdict plain;
  const ReducedLanes lanes;
  std::size_t told = 0;
  for (std::int64_t step = 0; step < StepEvents::kClipEventSteps; ++step) {
    told += events.from_verdict(step, step % 2 == 0 ? clipped : plain, lanes, 0).size();
  }
  EXPECT_EQ(told, 1U);
  const auto later = events.from_verdict(StepEvents::kClipEventSteps, clipped, lanes, 0);
  ASSERT_EQ(later.size(), 1U);
  EXPECT_EQ(later[0].kind, event_kind::kGradientClipped);
  EXPECT_EQ(later[0].inputs.at("clipped_steps"), StepEvents::kClipEventSteps / 2.0);
}

TEST(StepEvents, AQkClipThatLastsIsReportedOnceAtItsOnset) {
  StepEvents events;
  Verdict clipped;
  clipped.head_gammas = {{0.5, 1.0}};
  ReducedLanes lanes;
  lanes.max_logits = {{200.0, 80.0}};
  std::vector<Event> reported;
  for (std::int64_t step = 0; step < 3 * StepEvents::kClipEventSteps; ++step) {
    for (Event& event : events.from_verdict(step, clipped, lanes, 100.0)) {
      reported.push_back(std::move(event));
    }
  }
  ASSERT_EQ(reported.size(), 1U);
  EXPECT_EQ(reported[0].kind, event_kind::kQkClip);
  EXPECT_EQ(reported[0].inputs.at("heads"), 1.0);
  EXPECT_EQ(reported[0].inputs.at("logit_max"), 200.0);
  EXPECT_EQ(reported[0].inputs.at("gamma_min"), 0.5);
  EXPECT_TRUE(events.from_verdict(300, Verdict{}, lanes, 100.0).empty());
  const auto again = events.from_verdict(301, clipped, lanes, 100.0);
  ASSERT_EQ(again.size(), 1U);
  EXPECT_EQ(again[0].inputs.at("clipped_steps"), 300.0);
}

TEST(StepEvents, ASkipCarriesWhatWasNotFinite) {
  StepEvents events;
  Verdict skipped;
  skipped.skip = true;
  ReducedLanes lanes;
  lanes.nonfinite_count = 3;
  const auto gradient = events.from_verdict(4, skipped, lanes, 0);
  ASSERT_EQ(gradient.size(), 1U);
  EXPECT_EQ(gradient[0].inputs.at("nonfinite_count"), 3.0);
  EXPECT_EQ(gradient[0].inputs.at("nonfinite_loss"), 0.0);
  EXPECT_EQ(gradient[0].inputs.at("nonfinite_logit"), 0.0);
  lanes.nonfinite_loss = true;
  EXPECT_EQ(events.from_verdict(5, skipped, lanes, 0)[0].inputs.at("nonfinite_loss"), 1.0);
}

TEST(StepEvents, AnOnsetSoonAfterAnEventIsReportedOnceThatIsPast) {
  StepEvents events;
  Verdict clipped;
  clipped.head_gammas = {{0.5}};
  ReducedLanes lanes;
  lanes.max_logits = {{200.0}};
  std::vector<std::int64_t> steps;
  for (std::int64_t step = 10; step < 1000; ++step) {
    const Verdict& verdict = step == 11 ? Verdict{} : clipped;
    if (!events.from_verdict(step, verdict, lanes, 100.0).empty()) {
      steps.push_back(step);
    }
  }
  EXPECT_EQ(steps, (std::vector<std::int64_t>{10, 10 + StepEvents::kClipEventSteps}));
}

TEST(StepEvents, ASpikeIsAWarningWithItsReason) {
  StepEvents events;
  Verdict spike;
  spike.clip_factor = 0.1;
  spike.gradient_spike = true;
  spike.reason = "ZClip: why";
  const auto told = events.from_verdict(7, spike, ReducedLanes{}, 0);
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(told[0].kind, event_kind::kGradientClipped);
  EXPECT_EQ(told[0].severity, Severity::kWarning);
  EXPECT_EQ(told[0].reason, "ZClip: why");
  EXPECT_EQ(told[0].labels.at("cause"), "zclip");
  EXPECT_EQ(events.from_verdict(8, spike, ReducedLanes{}, 0).size(), 0U);  // Still the same one.
}

TEST(StepEvents, AClippedGroupIsToldThoughTheOthersAreNot) {
  StepEvents events;
  Verdict verdict;
  verdict.group_clip_factors = {1.0, 0.25};
  const auto told = events.from_verdict(0, verdict, ReducedLanes{}, 0);
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(told[0].inputs.at("clip_factor"), 0.25);
}

TEST(StepEvents, DivergenceIsAnError) {
  StepEvents events;
  Verdict verdict;
  verdict.diverged = true;
  const auto told = events.from_verdict(3, verdict, ReducedLanes{}, 0);
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(told[0].kind, event_kind::kDivergence);
  EXPECT_EQ(told[0].severity, Severity::kError);
}

}  // namespace
}  // namespace muster::agent
