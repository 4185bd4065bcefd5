// SPDX-License-Identifier: Apache-2.0
// Telemetry that a run under block attention delivers to a collector.
#include "tests/unit/agent/fake_collector.h"
#include "tests/unit/trainer/job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

namespace muster::moe_lm {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Le;
using ::testing::SizeIs;

// Runs a job of one rank under `schedule` and returns the telemetry that it delivered.
agent::FakeCollector::Received delivered(const std::string& schedule, std::int64_t loss_every = 1) {
  agent::FakeCollector collector;
  collector.start({});
  TrainOptions options = small_options();  // two layers, sequences of 16
  options.attention = agent::AttentionSchedule::parse(schedule).value();
  options.loss_every = loss_every;
  const auto results = run_job(1, options, [&](TrainSetup& setup) {
    setup.agent.telemetry = true;
    setup.agent.collector = collector.address();
  });
  EXPECT_TRUE(results[0].ok()) << results[0].status().to_string();
  EXPECT_TRUE(collector.wait([&](const agent::FakeCollector::State& state) {
    const auto rank = state.find(0);
    return rank != state.end() &&
           rank->second.frames().size() == static_cast<std::size_t>(options.steps) &&
           rank->second.said_goodbye;
  }));
  return collector.state().at(0);
}

// "3: layer 0 full -> moba:4,2" of every switch.
std::vector<std::string> switches(const agent::FakeCollector::Received& received) {
  std::vector<std::string> texts;
  for (const Event& event : received.events()) {
    if (event.kind == event_kind::kAttentionModeChanged) {
      texts.push_back(
          std::to_string(event.step) + ": layer " + event.labels.at("layer") + " " +
          event.labels.at("from") + " -> " + event.labels.at("to"));
    }
  }
  return texts;
}

// A metric's value at every step; `index` is the head where it has one.
std::vector<float> series(
    const agent::FakeCollector::Received& received,
    const std::string& name,
    int layer,
    int index = -1) {
  const auto& metrics = received.schema.metrics;
  const auto found = std::find_if(metrics.begin(), metrics.end(), [&](const auto& metric) {
    return metric.name == name && metric.layer == layer && metric.index == index;
  });
  std::vector<float> values;
  for (const SampleFrame& frame : received.frames()) {
    if (found != metrics.end()) {
      values.push_back(frame.values.at(static_cast<std::size_t>(found - metrics.begin())));
    }
  }
  return values;
}

TEST(MoeLmAttentionTelemetry, ASwitchIsOneEventPerLayerAndBackAnother) {
  EXPECT_THAT(
      switches(delivered("steps 3: moba 4 2")),
      ElementsAre("3: layer 0 full -> moba:4,2", "3: layer 1 full -> moba:4,2"));
  EXPECT_THAT(
      switches(delivered("steps 3:6 layers 1 moba 4 2")),
      ElementsAre("3: layer 1 full -> moba:4,2", "6: layer 1 moba:4,2 -> full"));
}

TEST(MoeLmAttentionTelemetry, BlocksThatAreAllChosenAreNoSwitch) {
  EXPECT_THAT(switches(delivered("steps 3:6 moba 8 2")), IsEmpty());
}

TEST(MoeLmAttentionTelemetry, ModesBoundsAndChoicesArriveWithEveryStep) {
  const auto received = delivered("steps 5: moba 4 2\nlast_full 1");
  EXPECT_THAT(series(received, "train_attn_mode", 0), ElementsAre(0, 0, 0, 0, 0, 1, 1, 1, 1, 1));
  EXPECT_THAT(series(received, "train_attn_mode", 1), AllOf(SizeIs(10), Each(0)));
  const auto largest = series(received, "train_attn_logit_max", 0, 1);
  const auto above = series(received, "train_attn_norm_bound", 0, 1);
  ASSERT_EQ(largest.size(), 10U);
  ASSERT_EQ(above.size(), 10U);
  for (std::size_t step = 5; step < 10; ++step) {
    EXPECT_LE(largest[step], above[step]) << step;
    EXPECT_GE(series(received, "train_moba_sink_share", 0)[step], 0) << step;
  }
}

TEST(MoeLmAttentionTelemetry, ReachFallsWithALossMaskAndRisesWithALastFullLayer) {
  // Blocks of 2 tokens, 8 of them; one token of a sequence's 16 bears loss and sees 2 blocks.
  const auto all = delivered("moba:2,2");
  const auto masked = delivered("moba:2,2", 16);
  const auto mended = delivered("moba:2,2,last_full=1", 16);
  EXPECT_THAT(series(all, "train_attn_block_reach", 0), AllOf(SizeIs(10), Each(1.0F)));
  EXPECT_THAT(series(all, "train_attn_query_reach", 1), AllOf(SizeIs(10), Each(1.0F)));
  EXPECT_THAT(series(masked, "train_attn_block_reach", 1), AllOf(SizeIs(10), Each(0.25F)));
  EXPECT_THAT(series(masked, "train_attn_query_reach", 1), AllOf(SizeIs(10), Each(0.0625F)));
  EXPECT_THAT(series(masked, "train_attn_block_reach", 0), AllOf(SizeIs(10), Each(Le(0.75F))));
  EXPECT_THAT(series(mended, "train_attn_block_reach", 0), AllOf(SizeIs(10), Each(1.0F)));
  EXPECT_THAT(series(mended, "train_attn_query_reach", 0), AllOf(SizeIs(10), Each(1.0F)));
}

}  // namespace
}  // namespace muster::moe_lm
