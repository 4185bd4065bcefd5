// SPDX-License-Identifier: Apache-2.0
// Whole agents over thread ranks, with a collector that answers.
#include "tests/unit/agent/fake_collector.h"
#include "tests/unit/agent/train_group.h"

#include <gtest/gtest.h>

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

namespace muster::agent {
namespace {

class WatchedTraining : public testing::Test {
 protected:
  WatchedTraining() { collector_.start({}); }

  GroupOptions group(int ranks, std::int64_t steps) {
    GroupOptions options;
    options.ranks = ranks;
    options.total_steps = steps;
    options.adjust = [this](AgentOptions& agent) {
      agent.collector = collector_.address();
      agent.ring_steps = 4096;
    };
    return options;
  }

  // Holds the calling rank until `condition` is true of what the collector has.
  void hold_until(const std::function<bool(const FakeCollector::State&)>& condition) {
    EXPECT_TRUE(collector_.wait(condition));
  }

  static bool armed(const FakeCollector::State& state, std::int32_t rank, std::uint64_t id) {
    const auto received = state.find(rank);
    if (received == state.end()) {
      return false;
    }
    const auto reports = received->second.reports();
    return std::any_of(reports.begin(), reports.end(), [id](const CommandReport& report) {
      return report.id.value() == id;
    });
  }

  static wire::CommandMessage command(std::uint64_t id, CommandKind kind, double argument = 0) {
    wire::CommandMessage message;
    message.command.id = CommandId{id};
    message.command.kind = kind;
    message.command.argument = argument;
    message.command.collector_epoch = 1;
    message.command.issuer = "operator";
    return message;
  }

  static std::vector<std::size_t> skipped_steps(const RankResult& result) {
    std::vector<std::size_t> steps;
    for (std::size_t step = 0; step < result.verdicts.size(); ++step) {
      if (result.verdicts[step].skip) {
        steps.push_back(step);
      }
    }
    return steps;
  }

  static std::vector<Event> events_of_kind(
      const FakeCollector::Received& received, const std::string& kind) {
    std::vector<Event> events = received.events();
    std::erase_if(events, [&kind](const Event& event) { return event.kind != kind; });
    return events;
  }

  FakeCollector collector_;
};

TEST_F(WatchedTraining, EveryRankDeliversEveryStep) {
  for (const RankResult& result : train(group(3, 40))) {
    EXPECT_TRUE(result.status.ok()) << result.status.to_string();
  }
  const auto state = collector_.state();
  ASSERT_EQ(state.size(), 3U);
  for (const auto& [rank, received] : state) {
    const auto frames = received.frames();
    ASSERT_EQ(frames.size(), 40U) << "rank " << rank;
    for (std::size_t step = 0; step < frames.size(); ++step) {
      EXPECT_EQ(frames[step].step, static_cast<std::int64_t>(step));
    }
  }
  EXPECT_EQ(events_of_kind(state.at(0), event_kind::kRunStarted).size(), 1U);
  EXPECT_EQ(events_of_kind(state.at(0), event_kind::kRunEnded).size(), 1U);
  EXPECT_TRUE(events_of_kind(state.at(1), event_kind::kRunStarted).empty());
}

TEST_F(WatchedTraining, CommandRunsAtTheSameStepThoughItArrivesAtDifferentOnes) {
  GroupOptions options = group(3, 30);
  // Step 5: only rank 0 has the command. Step 12: rank 1 too. Step 20: all.
  options.on_step = [this](StepContext& context) {
    if (context.rank == 0 && context.step == 0) {
      hold_until([](const auto& state) {
        return state.size() == 3 && std::all_of(state.begin(), state.end(), [](const auto& entry) {
                 return entry.second.schemas > 0;
               });
      });
    }
    const std::int64_t arrives[] = {5, 12, 20};
    if (context.step == arrives[context.rank]) {
      collector_.send(context.rank, command(1, CommandKind::kSkipStep));
      hold_until([rank = context.rank](const auto& state) { return armed(state, rank, 1); });
    }
  };
  const auto results = train(options);
  for (const RankResult& result : results) {
    ASSERT_TRUE(result.status.ok()) << result.status.to_string();
    EXPECT_EQ(skipped_steps(result), std::vector<std::size_t>{20});
    EXPECT_EQ(result.parameters, results[0].parameters);
  }
  for (const auto& [rank, received] : collector_.state()) {
    const auto reports = received.reports();
    ASSERT_EQ(reports.size(), 2U);
    EXPECT_EQ(reports[1].state, CommandState::kApplied);
    EXPECT_EQ(reports[1].step, 20);
  }
}

TEST_F(WatchedTraining, RanksWithDifferentListsRunNone) {
  GroupOptions options = group(2, 20);
  options.on_step = [this](StepContext& context) {
    if (context.step == 3) {
      hold_until([](const auto& state) {
        return state.size() == 2 && state.at(0).schemas > 0 && state.at(1).schemas > 0;
      });
      collector_.send(
          context.rank,
          command(1, CommandKind::kSetQkClipThreshold, context.rank == 0 ? 1.5 : 1.0));
      hold_until([rank = context.rank](const auto& state) { return armed(state, rank, 1); });
    }
  };
  const auto results = train(options);
  EXPECT_EQ(results[0].parameters, results[1].parameters);
  const auto state = collector_.state();
  EXPECT_EQ(state.at(0).reports().back().state, CommandState::kRejected);
  EXPECT_EQ(state.at(1).reports().back().state, CommandState::kRejected);
}

TEST_F(WatchedTraining, AThresholdIsRejectedWithTheReasonWhereANormMakesQkClipANoOp) {
  GroupOptions options = group(2, 20);
  optimizer::AttentionLayer layer{4, 2, 4, "wq", "wk"};
  layer.qk_norm = true;
  options.model.emplace();
  options.model->attention = {layer};
  options.model->experts_per_layer = {3};
  options.on_step = [this](StepContext& context) {
    context.agent.record_max_logits(0, std::vector<float>{9.0F, 1.0F});
    if (context.step == 3) {
      hold_until([](const auto& state) {
        return state.size() == 2 && state.at(0).schemas > 0 && state.at(1).schemas > 0;
      });
      collector_.send(context.rank, command(1, CommandKind::kSetQkClipThreshold, 1.0));
      hold_until([rank = context.rank](const auto& state) { return armed(state, rank, 1); });
    }
  };
  for (const RankResult& result : train(options)) {
    EXPECT_TRUE(result.status.ok()) << result.status.to_string();
    EXPECT_EQ(result.ending, Ending::kFinished);
    for (const Verdict& verdict : result.verdicts) {
      EXPECT_TRUE(verdict.head_gammas.empty());
    }
  }
  const CommandReport report = collector_.state().at(0).reports().back();
  EXPECT_EQ(report.state, CommandState::kRejected);
  EXPECT_NE(
      report.reason.find("attention layer 4: queries or keys are normalised"), std::string::npos)
      << report.reason;
}

TEST_F(WatchedTraining, StopSavesAndEndsEveryRankAtOneStep) {
  const ScratchFolder folder;
  GroupOptions options = group(2, 1000);
  options.adjust = [&](AgentOptions& agent) {
    agent.collector = collector_.address();
    agent.checkpoint_root = folder.path();
  };
  options.on_step = [this](StepContext& context) {
    if (context.step == 4) {
      hold_until([](const auto& state) {
        return state.size() == 2 && state.at(0).schemas > 0 && state.at(1).schemas > 0;
      });
      collector_.send(context.rank, command(1, CommandKind::kStop));
      hold_until([rank = context.rank](const auto& state) { return armed(state, rank, 1); });
    }
  };
  for (const RankResult& result : train(options)) {
    EXPECT_TRUE(result.status.ok()) << result.status.to_string();
    EXPECT_EQ(result.ending, Ending::kStopped);
    EXPECT_EQ(result.verdicts.size(), 5U);
  }
  const auto saved = checkpoint::newest_verified(folder.path(), "unit");
  ASSERT_TRUE(saved.ok());
  EXPECT_EQ(saved->step, StepIndex{5});
  const auto state = collector_.state();
  EXPECT_EQ(events_of_kind(state.at(0), event_kind::kCheckpointCommitted).size(), 1U);
  EXPECT_EQ(events_of_kind(state.at(0), event_kind::kCommandApplied).size(), 1U);
}

// A restarted job reports the commands it has run, and runs none of them again.
TEST_F(WatchedTraining, AppliedCommandsSurviveARestart) {
  const ScratchFolder folder;
  GroupOptions first = group(2, 8);
  first.adjust = [&](AgentOptions& agent) {
    agent.collector = collector_.address();
    agent.checkpoint_root = folder.path();
  };
  first.on_step = [this](StepContext& context) {
    if (context.step == 2) {
      hold_until([](const auto& state) {
        return state.size() == 2 && state.at(0).schemas > 0 && state.at(1).schemas > 0;
      });
      collector_.send(context.rank, command(6, CommandKind::kSetQkClipThreshold, 3.5));
      hold_until([rank = context.rank](const auto& state) { return armed(state, rank, 6); });
    }
  };
  ASSERT_TRUE(train(first)[0].status.ok());
  const auto saved = checkpoint::newest_verified(folder.path(), "unit");
  ASSERT_TRUE(saved.ok());
  GroupOptions second = group(2, 12);
  second.adjust = [&](AgentOptions& agent) {
    agent.collector = collector_.address();
    agent.identity.generation = Generation{2};
    agent.resume_from = saved->path;
  };
  const auto resumed = train(second);
  ASSERT_TRUE(resumed[0].status.ok()) << resumed[0].status.to_string();
  EXPECT_EQ(collector_.state().at(0).last_hello.last_applied_command, 6U);
  EXPECT_EQ(collector_.state().at(0).last_hello.known_epoch, 1);
  EXPECT_FALSE(resumed[0].verdicts.back().head_gammas.empty());
}

TEST_F(WatchedTraining, NanStepIsAnEventWithItsNumbers) {
  GroupOptions options = group(2, 10);
  options.on_step = [](StepContext& context) {
    context.inject_nan = context.rank == 1 && context.step == 4;
  };
  ASSERT_TRUE(train(options)[0].status.ok());
  const auto state = collector_.state();
  const auto skips = events_of_kind(state.at(0), event_kind::kStepSkipped);
  ASSERT_EQ(skips.size(), 1U);
  EXPECT_EQ(skips[0].step, 4);
  EXPECT_GE(skips[0].inputs.at("nonfinite_count"), 1.0);
}

// Training gives the same bits with a collector, without one, and with one that disappears.
TEST_F(WatchedTraining, TelemetryNeverChangesTraining) {
  const auto plain = train([] {
    GroupOptions options;
    options.total_steps = 60;
    return options;
  }());
  GroupOptions watched = group(2, 60);
  watched.on_step = [this](StepContext& context) {
    if (context.rank == 0 && context.step == 30) {
      collector_.stop();
    }
  };
  const auto results = train(watched);
  for (const RankResult& result : results) {
    EXPECT_TRUE(result.status.ok()) << result.status.to_string();
    EXPECT_EQ(result.parameters, plain[0].parameters);
  }
}

// No room for the stack of another thread: the I/O thread cannot start.
TEST_F(WatchedTraining, AnUplinkThatCannotStartDoesNotStopTraining) {
  pthread_attr_t kept;
  ASSERT_EQ(::pthread_getattr_default_np(&kept), 0);
  GroupOptions options = group(1, 10);
  const auto with_address = options.adjust;
  options.adjust = [&](AgentOptions& agent) {
    with_address(agent);
    pthread_attr_t huge;
    ASSERT_EQ(::pthread_getattr_default_np(&huge), 0);
    ASSERT_EQ(::pthread_attr_setstacksize(&huge, std::size_t{1} << 46U), 0);
    ASSERT_EQ(::pthread_setattr_default_np(&huge), 0);
    ::pthread_attr_destroy(&huge);
  };
  const auto results = train(options);
  EXPECT_EQ(::pthread_setattr_default_np(&kept), 0);
  ::pthread_attr_destroy(&kept);
  EXPECT_TRUE(results[0].status.ok()) << results[0].status.to_string();
  EXPECT_EQ(results[0].verdicts.size(), 10U);
}

TEST_F(WatchedTraining, BadCollectorAddressIsNamedAtJoin) {
  GroupOptions options;
  options.adjust = [](AgentOptions& agent) { agent.collector = "nowhere"; };
  const Status status = train(options)[0].status;
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("nowhere"), std::string::npos);
}

}  // namespace
}  // namespace muster::agent
