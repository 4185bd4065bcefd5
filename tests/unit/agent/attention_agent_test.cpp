// SPDX-License-Identifier: Apache-2.0
// Attention modes, block attention and gradient reach through whole agents, as a collector sees
// them.
#include "tests/unit/agent/fake_collector.h"
#include "tests/unit/agent/train_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>

namespace muster::agent {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr auto kLong = std::int64_t{1} << 20;

AttentionSchedule parsed(const std::string& text) {
  return AttentionSchedule::parse(text).value();
}

// Two layers of two heads that metrics call 4 and 5.
ModelInfo model_of(const std::string& schedule) {
  ModelInfo model;
  model.attention = {{4, 2, 4, "wq", "wk"}, {5, 2, 4, "wq", "wk"}};
  model.experts_per_layer = {3};
  if (!schedule.empty()) {
    model.attention_schedule = parsed(schedule);
  }
  return model;
}

// Sets the modes of the schedule, as a model would.
void follow(StepContext& context, const std::string& schedule) {
  std::vector<AttentionMode> modes;
  for (std::int64_t layer = 0; layer < 2; ++layer) {
    modes.push_back(parsed(schedule).mode_at({layer, 2, context.step, kLong}));
  }
  context.agent.set_attention_modes(modes);
}

class WatchedAttention : public testing::Test {
 protected:
  WatchedAttention() { collector_->start({}); }

  GroupOptions group(const std::string& schedule, std::int64_t steps) {
    GroupOptions options;
    options.total_steps = steps;
    options.model = model_of(schedule);
    options.adjust = [this](AgentOptions& agent) {
      agent.collector = collector_->address();
      agent.checkpoint_root = folder_.path();
    };
    if (!schedule.empty()) {
      options.on_step = [schedule](StepContext& context) { follow(context, schedule); };
    }
    return options;
  }

  // Resumes from the last checkpoint, with a collector that is new.
  GroupOptions resumed(const std::string& schedule, std::int64_t steps, bool allow_change = false) {
    collector_ = std::make_unique<FakeCollector>();
    collector_->start({});
    GroupOptions options = group(schedule, steps);
    const auto saved = checkpoint::newest_verified(folder_.path(), "unit").value();
    options.adjust = [this, saved, allow_change](AgentOptions& agent) {
      agent.collector = collector_->address();
      agent.checkpoint_root = folder_.path();
      agent.resume_from = saved.path;
      agent.identity.generation = Generation{saved.generation.value() + 1};
      agent.allow_attention_change = allow_change;
    };
    return options;
  }

  static void expect_success(const std::vector<RankResult>& results) {
    for (const RankResult& result : results) {
      EXPECT_TRUE(result.status.ok()) << result.status.to_string();
    }
  }

  [[nodiscard]] std::vector<Event> events(std::int32_t rank, const std::string& kind) const {
    std::vector<Event> events = collector_->state().at(rank).events();
    std::erase_if(events, [&kind](const Event& event) { return event.kind != kind; });
    return events;
  }

  [[nodiscard]] double value(
      std::int64_t step,
      const std::string& name,
      int layer,
      int index = -1,
      std::int32_t rank = 0) const {
    const FakeCollector::Received received = collector_->state().at(rank);
    for (const SampleFrame& frame : received.frames()) {
      for (const MetricDescriptor& metric : received.schema.metrics) {
        if (frame.step == step && metric.name == name && metric.layer == layer &&
            metric.index == index) {
          return static_cast<double>(frame.values[metric.id]);
        }
      }
    }
    ADD_FAILURE() << "no " << name << " of step " << step;
    return 0;
  }

  ScratchFolder folder_;
  std::unique_ptr<FakeCollector> collector_ = std::make_unique<FakeCollector>();
};

TEST_F(WatchedAttention, EverySwitchOfALayerIsToldOnceByRankZeroAtItsStep) {
  const std::string schedule = "steps 3:6 moba 64 3\nsteps 6: layers 0 moba 32 2";
  expect_success(train(group(schedule, 9)));
  const auto told = events(0, event_kind::kAttentionModeChanged);
  ASSERT_EQ(told.size(), 4U);
  using Labels = std::map<std::string, std::string>;
  EXPECT_EQ(told[0].step, 3);
  EXPECT_EQ(told[0].labels, (Labels{{"layer", "4"}, {"from", "full"}, {"to", "moba:64,3"}}));
  EXPECT_EQ(told[1].step, 3);
  EXPECT_EQ(told[1].labels.at("layer"), "5");
  EXPECT_EQ(told[2].step, 6);
  EXPECT_EQ(told[2].labels, (Labels{{"layer", "4"}, {"from", "moba:64,3"}, {"to", "moba:32,2"}}));
  EXPECT_EQ(told[3].labels, (Labels{{"layer", "5"}, {"from", "moba:64,3"}, {"to", "full"}}));
  EXPECT_TRUE(events(1, event_kind::kAttentionModeChanged).empty());
  for (std::int64_t step = 0; step < 9; ++step) {
    EXPECT_EQ(value(step, "train_attn_mode", 4), step >= 3 ? 1.0 : 0.0) << "step " << step;
    EXPECT_EQ(value(step, "train_attn_mode", 5), step >= 3 && step < 6 ? 1.0 : 0.0);
  }
}

TEST_F(WatchedAttention, ASwitchAtTheFirstStepAfterAResumeIsTold) {
  const std::string schedule = "steps 4: layers 1 moba 64 3";
  expect_success(train(group(schedule, 4)));
  EXPECT_TRUE(events(0, event_kind::kAttentionModeChanged).empty());
  expect_success(train(resumed(schedule, 8)));
  const auto told = events(0, event_kind::kAttentionModeChanged);
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(told[0].step, 4);
  EXPECT_EQ(told[0].labels.at("layer"), "5");
  EXPECT_EQ(told[0].labels.at("from"), "full");
}

TEST_F(WatchedAttention, AResumeThatGoesOnAsBeforeTellsNoSwitch) {
  const std::string schedule = "layers 1 moba 64 3";
  expect_success(train(group(schedule, 4)));
  expect_success(train(resumed(schedule, 8)));
  EXPECT_TRUE(events(0, event_kind::kAttentionModeChanged).empty());
  EXPECT_TRUE(events(0, event_kind::kAttentionScheduleChanged).empty());
}

TEST_F(WatchedAttention, AnotherScheduleIsRefusedWithBothTextsAndTheRemedy) {
  expect_success(train(group("moba:64,3", 4)));
  for (const RankResult& result : train(resumed("moba:64,3,last_full=1", 8))) {
    EXPECT_EQ(result.status.code(), StatusCode::kFailedPrecondition);
    EXPECT_TRUE(result.verdicts.empty());
    EXPECT_THAT(
        result.status.message(),
        AllOf(
            HasSubstr("'moba:64,3'"),
            HasSubstr("'moba:64,3,last_full=1'"),
            HasSubstr("at step 4 attention layer 1"),
            HasSubstr("MUSTER_ALLOW_ATTENTION_CHANGE=1")));
  }
  // Not to say anything is to have full attention.
  EXPECT_EQ(train(resumed("", 8))[0].status.code(), StatusCode::kFailedPrecondition);
}

TEST_F(WatchedAttention, TheSameScheduleInOtherWordsGoesOn) {
  expect_success(train(group("steps 0:2 layers 0 moba 64 3\nlast_full 1", 4)));
  expect_success(train(resumed("full", 6)));  // What differed has run.
  EXPECT_TRUE(events(0, event_kind::kAttentionScheduleChanged).empty());
}

TEST_F(WatchedAttention, AnAllowedChangeIsAnEventAndItsSwitchesAreToo) {
  expect_success(train(group("moba:64,3", 4)));
  expect_success(train(resumed("moba:64,3,last_full=1", 6, true)));
  const auto changed = events(0, event_kind::kAttentionScheduleChanged);
  ASSERT_EQ(changed.size(), 1U);
  EXPECT_EQ(changed[0].step, 4);
  EXPECT_EQ(changed[0].severity, Severity::kWarning);
  EXPECT_EQ(changed[0].labels.at("from"), "moba:64,3");
  EXPECT_EQ(changed[0].labels.at("to"), "moba:64,3,last_full=1");
  const auto switched = events(0, event_kind::kAttentionModeChanged);
  ASSERT_EQ(switched.size(), 1U);
  EXPECT_EQ(switched[0].labels.at("layer"), "5");
  EXPECT_TRUE(events(1, event_kind::kAttentionScheduleChanged).empty());
  // From then on the new one is the run's.
  expect_success(train(resumed("moba:64,3,last_full=1", 8)));
  EXPECT_TRUE(events(0, event_kind::kAttentionScheduleChanged).empty());
  EXPECT_TRUE(events(0, event_kind::kAttentionModeChanged).empty());
}

TEST_F(WatchedAttention, ACheckpointFromBeforeThereWasAChoiceCountsAsFull) {
  expect_success(train(group("", 3)));
  EXPECT_EQ(train(resumed("moba:64,3", 6))[0].status.code(), StatusCode::kFailedPrecondition);
  expect_success(train(resumed("full", 6)));
}

TEST_F(WatchedAttention, RecordsAreMergedOverPassesAndRanks) {
  GroupOptions options = group("moba:64,3,last_full=1", 2);
  options.on_step = [](StepContext& context) {
    follow(context, "moba:64,3,last_full=1");
    if (context.step == 1) {
      return;  // No record of step 0 may remain.
    }
    const auto rank = static_cast<float>(context.rank);
    for (int pass = 0; pass < 3; ++pass) {
      const std::array<float, 2> bounds{rank, static_cast<float>(pass)};
      const std::array<std::int64_t, 4> counts{3, 1, 1, 1};
      const std::array<double, 2> sink{0.5, 1.0};
      const std::array<double, 2> margin{1.0, std::nan("")};
      MobaRecord record;
      record.gate_bound = bounds;
      record.norm_bound = bounds;
      record.block_counts = counts;
      record.blocks = 2;
      record.sink_share = sink;
      record.gate_margin = margin;
      context.agent.record_moba(0, record);
      context.agent.record_reach(0, {4, 1 + context.rank, 2, 1});
      context.agent.record_reach(1, {4, 4, 2, 2});
    }
  };
  expect_success(train(options));
  EXPECT_EQ(value(0, "train_attn_gate_bound", 4, 0), 1.0);
  EXPECT_EQ(value(0, "train_attn_norm_bound", 4, 1), 2.0);
  EXPECT_EQ(value(0, "train_attn_nonfinite_rows", 4), 0.0);
  EXPECT_EQ(value(0, "train_attn_query_reach", 4), 0.375);
  EXPECT_EQ(value(0, "train_attn_block_reach", 4), 0.5);
  EXPECT_EQ(value(0, "train_moba_sink_share", 4), 0.75);
  EXPECT_EQ(value(0, "train_moba_gate_margin", 4), 1.0);
  EXPECT_FLOAT_EQ(static_cast<float>(value(0, "train_moba_block_share", 4, 0)), 4.0F / 6.0F);
  EXPECT_EQ(value(0, "train_moba_block_max_over_mean", 4), 1.5);
  EXPECT_TRUE(std::isnan(value(1, "train_attn_gate_bound", 4, 0)));
  EXPECT_TRUE(std::isnan(value(1, "train_attn_query_reach", 4)));
  EXPECT_TRUE(std::isnan(value(1, "train_moba_block_share", 4, 0)));
}

// The head's maximum looks healthy; only the rows are not finite.
TEST_F(WatchedAttention, RowsThatAreNotFiniteSkipTheStepAndNoMaximumLooksHealthy) {
  GroupOptions options = group("moba:64,3", 4);
  options.on_step = [](StepContext& context) {
    follow(context, "moba:64,3");
    context.agent.record_max_logits(0, std::array<float, 2>{1.0F, 2.0F});
    if (context.step == 2 && context.rank == 1) {
      const std::array<std::int64_t, 2> rows{0, 7};
      MobaRecord record;
      record.nonfinite_rows = rows;
      context.agent.record_moba(0, record);
      context.agent.record_max_logits(0, std::array<float, 2>{1.0F, 2.0F});
    }
  };
  const auto results = train(options);
  expect_success(results);
  for (std::size_t step = 0; step < 4; ++step) {
    EXPECT_EQ(results[0].verdicts[step].skip, step == 2);
  }
  EXPECT_EQ(value(2, "train_attn_nonfinite_rows", 4), 7.0);
  EXPECT_EQ(value(2, "train_attn_logit_max", 4, 0), 1.0);
  EXPECT_EQ(value(2, "train_attn_logit_max", 4, 1), std::numeric_limits<double>::infinity());
  EXPECT_EQ(value(3, "train_attn_logit_max", 4, 1), 2.0);
  const auto skips = events(0, event_kind::kStepSkipped);
  ASSERT_EQ(skips.size(), 1U);
  EXPECT_EQ(skips[0].inputs.at("nonfinite_rows"), 7.0);
}

TEST_F(WatchedAttention, AnEvaluationRecordsNothing) {
  GroupOptions options = group("moba:64,3", 2);
  options.model->expert_ranks = 2;
  options.on_step = [](StepContext& context) {
    follow(context, "moba:64,3");
    const auto paused = context.agent.pause_recording();
    const std::array<std::int64_t, 2> rows{1, 1};
    const std::array<float, 2> bounds{1.0F, 1.0F};
    MobaRecord record;
    record.nonfinite_rows = rows;
    record.norm_bound = bounds;
    context.agent.record_moba(0, record);
    context.agent.record_reach(0, {1, 1, 1, 1});
    parallel::EpEvent event;
    event.ranks = 2;
    event.copies = 1;
    context.agent.record_ep(0, event);
    context.agent.set_attention_modes(std::vector<AttentionMode>(2));
  };
  const auto results = train(options);
  expect_success(results);
  EXPECT_FALSE(results[0].verdicts[0].skip);
  EXPECT_TRUE(std::isnan(value(0, "train_attn_norm_bound", 4, 0)));
  EXPECT_TRUE(std::isnan(value(0, "train_attn_query_reach", 4)));
  EXPECT_EQ(value(0, "train_ep_copies", 0), 0.0);
  EXPECT_EQ(value(1, "train_attn_mode", 4), 1.0);
}

TEST_F(WatchedAttention, ExpertParallelismAddsUpOverTheJobAndWaitsAreEachRanksOwn) {
  GroupOptions options = group("full", 2);
  options.model->expert_ranks = 2;
  options.on_step = [](StepContext& context) {
    for (int pass = 0; pass < 2; ++pass) {
      parallel::EpEvent event;
      event.ranks = 2;
      event.rank_imbalance = 1.5 + pass;
      event.rows = 32;
      event.copies = 3;
      event.rows_moved = 5;
      event.pad_rows = 8;
      event.dedup_rows = 2 * context.rank;
      event.bytes_out = 100 + context.rank;
      event.plan_ns = 1'000'000'000;
      event.move_ns = 2'000'000'000;
      event.wait_ns[static_cast<std::size_t>(1 - context.rank)] =
          (1 + context.rank) * std::int64_t{1'000'000'000};
      context.agent.record_ep(0, event);
    }
  };
  expect_success(train(options));
  for (std::int64_t step = 0; step < 2; ++step) {
    EXPECT_EQ(value(step, "train_ep_rank_imbalance_ratio", 0), 2.5);
    EXPECT_EQ(value(step, "train_ep_copies", 0), 6.0);
    EXPECT_EQ(value(step, "train_ep_rows_moved", 0), 10.0);
    EXPECT_EQ(value(step, "train_ep_pad_ratio", 0), 0.25);
    EXPECT_EQ(value(step, "train_ep_dedup_ratio", 0), 1.0 - 4.0 / 64.0);
    EXPECT_EQ(value(step, "train_ep_bytes_out", 0), 402.0);
    EXPECT_EQ(value(step, "train_ep_wait_seconds", -1, 0, 0), 0.0);
    EXPECT_EQ(value(step, "train_ep_wait_seconds", -1, 1, 0), 2.0);
    EXPECT_EQ(value(step, "train_ep_wait_seconds", -1, 0, 1), 4.0);
    EXPECT_EQ(value(step, "train_ep_plan_seconds", -1, -1, 1), 2.0);
    EXPECT_EQ(value(step, "train_ep_move_seconds", -1, -1, 1), 4.0);
  }
}

// The message of the only step of a run whose `call` does not fit the model.
std::string misuse(const std::string& schedule, const std::function<void(Agent&)>& call) {
  GroupOptions options;
  options.ranks = 1;
  options.model = model_of(schedule);
  options.model->expert_ranks = 2;
  options.on_step = [&call](StepContext& context) { call(context.agent); };
  const Status status = train(options)[0].status;
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  return status.message();
}

TEST(AttentionMisuse, NamesWhatDoesNotFitTheModel) {
  const AttentionMode moba{kernels::MobaOptions{64, 3}, AttentionReason::kRule};
  EXPECT_THAT(
      misuse(
          "full", [](Agent& agent) { agent.set_attention_modes(std::vector<AttentionMode>(3)); }),
      HasSubstr("3 attention modes do not fit"));
  EXPECT_THAT(
      misuse("", [](Agent& agent) { agent.set_attention_modes(std::vector<AttentionMode>(2)); }),
      HasSubstr("without an attention_schedule"));
  EXPECT_THAT(
      misuse(
          "moba:64,3,last_full=1",
          [&](Agent& agent) {
            agent.set_attention_modes(std::vector{moba, moba});
          }),
      AllOf(HasSubstr("attention layer 1"), HasSubstr("moba:64,3"), HasSubstr("never")));
  EXPECT_THAT(
      misuse("moba:64,3,last_full=1", [](Agent& agent) { agent.record_moba(1, {}); }),
      HasSubstr("attention layer 1"));
  EXPECT_THAT(
      misuse(
          "moba:64,3",
          [](Agent& agent) {
            agent.record_reach(0, {1, 2, 0, 0});
          }),
      HasSubstr("2 of 1 queries"));
  EXPECT_THAT(
      misuse("moba:64,3", [](Agent& agent) { agent.record_reach(2, {}); }),
      HasSubstr("attention layer 2"));
  EXPECT_THAT(
      misuse("full", [](Agent& agent) { agent.record_ep(0, parallel::EpEvent{}); }),
      HasSubstr("0 ranks"));
}

TEST(AttentionMisuse, AScheduleThatDoesNotFitTheModelIsRefusedAtJoin) {
  GroupOptions options;
  options.model = model_of("layers 0-2 moba 64 3");
  const Status status = train(options)[0].status;
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("layer 2"));
}

TEST(AttentionMisuse, ExpertEventsOfAModelWithoutExpertRanksAreNotLookedAt) {
  GroupOptions options;
  options.total_steps = 2;
  options.model = model_of("");
  options.on_step = [](StepContext& context) {
    parallel::EpEvent event;
    event.ranks = 4;
    context.agent.record_ep(17, event);
  };
  EXPECT_TRUE(train(options)[0].status.ok());
}

}  // namespace
}  // namespace muster::agent
