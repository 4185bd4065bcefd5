// SPDX-License-Identifier: Apache-2.0
// Agents over thread ranks, without a collector.
#include "tests/unit/agent/train_group.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <csignal>

namespace muster::agent {
namespace {

void expect_ok(const std::vector<RankResult>& results) {
  for (const RankResult& result : results) {
    EXPECT_TRUE(result.status.ok()) << result.status.to_string();
  }
}

void expect_same_parameters(const std::vector<RankResult>& results) {
  for (const RankResult& result : results) {
    EXPECT_EQ(result.parameters, results.front().parameters);
  }
}

TEST(Agent, TrainsToTheLastStepOnEveryRank) {
  GroupOptions options;
  options.ranks = 3;
  const auto results = train(options);
  expect_ok(results);
  expect_same_parameters(results);
  for (const RankResult& result : results) {
    EXPECT_EQ(result.ending, Ending::kFinished);
    EXPECT_EQ(result.verdicts.size(), 10U);
  }
  EXPECT_LT(results[0].verdicts.back().loss, results[0].verdicts.front().loss);
}

// The NaN run must equal a run whose ranks all leave the batch of that step out.
TEST(Agent, NanOnOneRankIsSkippedByAllBitForBit) {
  GroupOptions poisoned;
  poisoned.ranks = 4;
  poisoned.on_step = [](StepContext& context) {
    context.inject_nan = context.rank == 2 && context.step == 4;
  };
  GroupOptions left_out;
  left_out.ranks = 4;
  left_out.on_step = [](StepContext& context) {
    if (context.step == 4) {
      context.optimizer.zero_gradients();
      context.tokens = 0;
    }
  };
  const auto results = train(poisoned);
  const auto expected = train(left_out);
  expect_ok(results);
  expect_ok(expected);
  expect_same_parameters(results);
  EXPECT_EQ(results[0].parameters, expected[0].parameters);
  for (const RankResult& result : results) {
    for (std::size_t step = 0; step < result.verdicts.size(); ++step) {
      EXPECT_EQ(result.verdicts[step].skip, step == 4) << "step " << step;
    }
  }
}

TEST(Agent, NanLossIsSkippedByAll) {
  GroupOptions options;
  options.on_step = [](StepContext& context) {
    if (context.rank == 1 && context.step == 3) {
      context.loss_sum = std::nan("");
    }
  };
  const auto results = train(options);
  expect_ok(results);
  EXPECT_TRUE(results[0].verdicts[3].skip);
  EXPECT_TRUE(results[1].verdicts[3].skip);
  EXPECT_EQ(results[0].parameters, results[1].parameters);
}

TEST(Agent, QkClipScalesTheSameHeadsEverywhere) {
  GroupOptions options;
  options.adjust = [](AgentOptions& agent) { agent.qk_clip_threshold = 6.5; };
  const auto results = train(options);
  expect_ok(results);
  expect_same_parameters(results);
  EXPECT_TRUE(results[0].verdicts[6].head_gammas.empty());
  ASSERT_EQ(results[0].verdicts[7].head_gammas.size(), 1U);
  EXPECT_DOUBLE_EQ(results[0].verdicts[7].head_gammas[0][0], 6.5 / 7.0);
  const auto unclipped = train(GroupOptions{});
  EXPECT_NE(results[0].parameters, unclipped[0].parameters);
}

TEST(Agent, PreemptionOfOneRankEndsAllAtTheSameStep) {
  const ScratchFolder folder;
  GroupOptions options;
  options.ranks = 3;
  options.total_steps = 100;
  options.adjust = [&](AgentOptions& agent) { agent.checkpoint_root = folder.path(); };
  options.on_step = [](StepContext& context) {
    if (context.rank == 1 && context.step == 5) {
      context.agent.request_preemption();
    }
  };
  const auto results = train(options);
  expect_ok(results);
  for (const RankResult& result : results) {
    EXPECT_EQ(result.ending, Ending::kPreempted);
    EXPECT_EQ(result.verdicts.size(), 6U);
  }
  const auto saved = checkpoint::newest_verified(folder.path(), "unit");
  ASSERT_TRUE(saved.ok()) << saved.status().to_string();
  EXPECT_EQ(saved->step, StepIndex{6});
}

TEST(Agent, ResumedRunEqualsTheUndisturbedOneBitForBit) {
  const ScratchFolder folder;
  GroupOptions whole;
  whole.ranks = 3;
  whole.total_steps = 14;
  whole.adjust = [](AgentOptions& agent) { agent.qk_clip_threshold = 8.5; };
  const auto undisturbed = train(whole);

  GroupOptions first = whole;
  first.adjust = [&](AgentOptions& agent) {
    agent.qk_clip_threshold = 8.5;
    agent.checkpoint_root = folder.path();
    agent.checkpoint_interval = 3;
  };
  first.on_step = [](StepContext& context) {
    if (context.step == 8) {
      context.agent.request_preemption();
    }
  };
  expect_ok(train(first));
  const auto saved = checkpoint::newest_verified(folder.path(), "unit");
  ASSERT_TRUE(saved.ok()) << saved.status().to_string();
  ASSERT_EQ(saved->step, StepIndex{9});

  GroupOptions second = whole;
  second.adjust = [&](AgentOptions& agent) {
    agent.identity.generation = Generation{2};
    agent.resume_from = saved->path;
  };
  const auto resumed = train(second);
  expect_ok(resumed);
  for (std::size_t rank = 0; rank < resumed.size(); ++rank) {
    EXPECT_EQ(resumed[rank].first_step, 9);
    EXPECT_EQ(resumed[rank].parameters, undisturbed[rank].parameters);
    EXPECT_EQ(resumed[rank].cursor, undisturbed[rank].cursor);
    EXPECT_EQ(resumed[rank].trainer_tensor, undisturbed[rank].trainer_tensor);
    EXPECT_EQ(resumed[rank].verdicts.back().loss, undisturbed[rank].verdicts.back().loss);
  }
}

// Trains until a commit was seen, however slow the disk is.
TEST(Agent, IntervalCheckpointsAreCommittedDuringTraining) {
  const ScratchFolder folder;
  std::atomic<bool> committed{false};
  GroupOptions options;
  options.total_steps = 0;
  options.adjust = [&](AgentOptions& agent) {
    agent.checkpoint_root = folder.path();
    agent.checkpoint_interval = 5;
  };
  options.on_step = [&](StepContext& context) {
    if (committed) {
      context.agent.request_preemption();
    }
  };
  options.after_step = [&](int, const Verdict& verdict) {
    committed = committed || verdict.commit_checkpoint != 0;
  };
  const auto results = train(options);
  expect_ok(results);
  ASSERT_EQ(results[0].verdicts.size(), results[1].verdicts.size());
  for (std::size_t step = 0; step < results[0].verdicts.size(); ++step) {
    EXPECT_EQ(
        results[0].verdicts[step].commit_checkpoint, results[1].verdicts[step].commit_checkpoint);
  }
  const auto saved = checkpoint::newest_verified(folder.path(), "unit");
  ASSERT_TRUE(saved.ok());
  EXPECT_EQ(saved->step.value(), static_cast<std::int64_t>(results[0].verdicts.size()));
}

TEST(Agent, RankWithAnotherGenerationFencesTheStep) {
  GroupOptions options;
  options.adjust = [](AgentOptions& agent) {
    if (agent.identity.rank == Rank{1}) {
      agent.identity.generation = Generation{2};
    }
  };
  const auto results = train(options);
  EXPECT_EQ(results[0].status.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(results[0].status.message().find("generations 1 and 2"), std::string::npos);
}

TEST(Agent, RanksWithDifferentSettingsDoNotStart) {
  GroupOptions options;
  options.adjust = [](AgentOptions& agent) {
    agent.checkpoint_interval = agent.identity.rank.value();
  };
  EXPECT_EQ(train(options)[0].status.code(), StatusCode::kInvalidArgument);
}

TEST(Agent, WrongWorldIsNamed) {
  GroupOptions options;
  options.adjust = [](AgentOptions& agent) { agent.world_size = 7; };
  const Status status = train(options)[0].status;
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find('7'), std::string::npos);
}

TEST(Agent, RecordsThatDoNotFitTheModelEndTheStep) {
  GroupOptions options;
  options.on_step = [](StepContext& context) {
    const std::vector<float> three{1.0F, 2.0F, 3.0F};
    context.agent.record_max_logits(0, three);
  };
  const Status status = train(options)[0].status;
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("layer 0"), std::string::npos);
}

TEST(Agent, CheckpointOfADeletedFolderIsNotFoundOnAllRanks) {
  GroupOptions options;
  options.adjust = [](AgentOptions& agent) { agent.resume_from = "/nowhere/step-9.gen-1"; };
  for (const RankResult& result : train(options)) {
    EXPECT_FALSE(result.status.ok());
    EXPECT_NE(result.status.message().find("/nowhere"), std::string::npos);
  }
}

TEST(Agent, FailedFinalCheckpointIsReportedByEveryRank) {
  const ScratchFolder folder;
  GroupOptions options;
  options.adjust = [&](AgentOptions& agent) { agent.checkpoint_root = folder.path(); };
  options.on_step = [&](StepContext& context) {
    if (context.rank == 0 && context.step == 9) {
      // A newer launch takes the run over: this one may not commit any more.
      ASSERT_TRUE(checkpoint::allocate_generation(folder.path(), "unit").ok());
      ASSERT_TRUE(checkpoint::allocate_generation(folder.path(), "unit").ok());
    }
  };
  for (const RankResult& result : train(options)) {
    EXPECT_EQ(result.ending, Ending::kFinished);
    EXPECT_FALSE(result.status.ok());
  }
  EXPECT_FALSE(checkpoint::newest_verified(folder.path(), "unit").ok());
}

void raise_at_step(StepContext& context, std::int64_t step, std::initializer_list<int> signals) {
  if (context.rank == 0 && context.step == step) {
    install_preemption_handlers(context.agent);
    for (const int number : signals) {
      ::raise(number);
    }
  }
}

TEST(Preemption, FirstSignalEndsAllRanksAfterTheStep) {
  GroupOptions options;
  options.on_step = [](StepContext& context) { raise_at_step(context, 3, {SIGTERM}); };
  for (const RankResult& result : train(options)) {
    EXPECT_TRUE(result.status.ok()) << result.status.to_string();
    EXPECT_EQ(result.ending, Ending::kPreempted);
    EXPECT_EQ(result.verdicts.size(), 4U);
  }
}

TEST(Preemption, FurtherTerminationSignalsAreTheSameRequestUntilTheProcessEnds) {
  GroupOptions options;
  options.on_step = [](StepContext& context) {
    raise_at_step(context, 3, {SIGTERM, SIGTERM, SIGTERM});
  };
  for (const RankResult& result : train(options)) {
    EXPECT_EQ(result.ending, Ending::kPreempted);
    EXPECT_EQ(result.verdicts.size(), 4U);
  }
  ::raise(SIGTERM);  // The agent is gone, its process not yet.
}

TEST(Preemption, SignalBeforeTheAgentExistsIsHeldForIt) {
  hold_preemption_signals();
  ::raise(SIGTERM);
  GroupOptions options;
  options.on_step = [](StepContext& context) { raise_at_step(context, 0, {}); };
  for (const RankResult& result : train(options)) {
    EXPECT_TRUE(result.status.ok()) << result.status.to_string();
    EXPECT_EQ(result.ending, Ending::kPreempted);
    EXPECT_EQ(result.verdicts.size(), 1U);
  }
}

TEST(PreemptionDeathTest, AnInterruptAfterASignalBeforeTheAgentExistsExitsAtOnce) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto impatient = [] {
    hold_preemption_signals();
    ::raise(SIGTERM);
    ::raise(SIGINT);
  };
  EXPECT_EXIT(impatient(), testing::ExitedWithCode(128 + SIGINT), "");
}

TEST(PreemptionDeathTest, AnInterruptAfterASignalExitsAtOnce) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  GroupOptions options;
  options.on_step = [](StepContext& context) { raise_at_step(context, 3, {SIGTERM, SIGINT}); };
  EXPECT_EXIT(static_cast<void>(train(options)), testing::ExitedWithCode(128 + SIGINT), "");
}

TEST(Agent, DivergedReplicasAreNoticedAndTrainingGoesOn) {
  GroupOptions options;
  options.adjust = [](AgentOptions& agent) { agent.digest_interval = 3; };
  options.on_step = [](StepContext& context) {
    if (context.rank == 1 && context.step == 6) {
      context.optimizer.parameters()[2].value[0] += 1.0F;
    }
  };
  const auto results = train(options);
  expect_ok(results);
  EXPECT_FALSE(results[0].verdicts[3].diverged);
  EXPECT_TRUE(results[0].verdicts[6].diverged);
  EXPECT_EQ(results[0].verdicts.size(), 10U);
}

}  // namespace
}  // namespace muster::agent
