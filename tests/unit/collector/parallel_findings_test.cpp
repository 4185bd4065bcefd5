// SPDX-License-Identifier: Apache-2.0
// Attention modes and expert parallelism: from samples and events of agents to findings.
#include "tests/unit/collector/running_collector.h"

#include <gtest/gtest.h>

#include <string>

namespace muster::collector {
namespace {

constexpr std::int32_t kEpRanks = 2;

// Loss and norm, two attention layers, one layer of experts, and the rank's row of the wait matrix.
MetricSchema schema() {
  MetricSchema made;
  const auto add = [&made](const char* name, MetricScope scope, int layer = -1, int index = -1) {
    MetricDescriptor& metric = made.metrics.emplace_back();
    metric.id = static_cast<std::uint32_t>(made.metrics.size() - 1);
    metric.name = name;
    metric.unit = "1";
    metric.scope = scope;
    metric.layer = layer;
    metric.index = index;
  };
  add("train_loss_nats", MetricScope::kJob);
  add("train_grad_norm", MetricScope::kJob);
  for (int layer = 0; layer < 2; ++layer) {
    add("train_attn_mode", MetricScope::kJob, layer);
    add("train_attn_query_reach", MetricScope::kJob, layer);
    add("train_attn_block_reach", MetricScope::kJob, layer);
  }
  add("train_moe_maxvio_ratio", MetricScope::kJob, 0);
  add("train_ep_rank_imbalance_ratio", MetricScope::kJob, 0);
  for (int peer = 0; peer < kEpRanks; ++peer) {
    add("train_ep_wait_seconds", MetricScope::kRank, -1, peer);
  }
  return made;
}

struct Values {
  float jump{0};         // Of loss and norm.
  float mode{0};         // Of layer 0; layer 1 is full.
  float block_reach{1};  // Of layer 0.
  float rho{1.3F};
  float wait_for_1{1e-3F};
};

// One rank that sends a step a batch.
class Sender {
 public:
  Sender(RunningCollector& running, std::int32_t rank, std::int64_t generation = 1)
      : client(running.join(agent_hello(rank, generation, kEpRanks))) {
    client.send(wire::SchemaMessage{schema()});
  }

  void steps(int count, const Values& values = {}) {
    for (int i = 0; i < count; ++i) {
      const float unrest = 0.01F * static_cast<float>(step % 7);
      SampleFrame frame{step, 0, 0, {2.0F + unrest + values.jump, 1.0F + unrest + 4 * values.jump}};
      frame.values.insert(frame.values.end(), {values.mode, 1.0F, values.block_reach});
      frame.values.insert(frame.values.end(), {0.0F, 1.0F, 1.0F});
      frame.values.insert(frame.values.end(), {0.8F + unrest, values.rho + unrest});
      frame.values.insert(frame.values.end(), {1e-3F, values.wait_for_1});
      client.send(wire::SampleBatch{seq++, schema().hash(), {frame}});
      ++step;
    }
  }

  void announce(const char* from, const char* to) {
    Event event;
    event.kind = event_kind::kAttentionModeChanged;
    event.step = step;
    event.labels = {{"layer", "0"}, {"from", from}, {"to", to}};
    client.send(wire::EventMessage{seq++, event});
  }

  [[nodiscard]] bool acked() { return client.receive_ack(seq - 1); }

  ScriptedClient client;
  std::uint64_t seq{1};
  std::int64_t step{0};
};

class ParallelFindings : public ::testing::Test {
 protected:
  void SetUp() override { running_.start(); }

  std::vector<store::StoredEvent> findings(const std::string& rule) {
    std::vector<store::StoredEvent> found;
    for (const store::StoredEvent& stored : running_.wait_for_events(event_kind::kFinding, 0)) {
      if (stored.event.labels.at("finding") == rule) {
        found.push_back(stored);
      }
    }
    return found;
  }

  RunningCollector running_;
};

TEST_F(ParallelFindings, AJumpThatComesWithASwitchOfAttentionIsNoAlarm) {
  Sender rank{running_, 0};
  rank.steps(100);
  rank.announce("full", "moba:512,3");
  rank.steps(100, {.jump = 1, .mode = 1});
  ASSERT_TRUE(rank.acked());
  EXPECT_TRUE(findings("spike_persistent").empty());
  rank.steps(4, {.jump = 1});
  ASSERT_TRUE(rank.acked());
  EXPECT_EQ(findings("spike_persistent").size(), 2U) << "back in full attention it is a jump";
}

TEST_F(ParallelFindings, ASwitchToOtherBlocksNeedsItsEvent) {
  Sender rank{running_, 0};
  rank.steps(100, {.mode = 1});
  rank.announce("moba:512,3", "moba:128,8");
  rank.steps(50, {.jump = 1, .mode = 1});
  ASSERT_TRUE(rank.acked());
  EXPECT_TRUE(findings("spike_persistent").empty());
}

TEST_F(ParallelFindings, EventsThatMakeNoSenseAreStoredAndNothingMore) {
  Sender rank{running_, 0};
  rank.steps(100);
  Event event;
  event.kind = event_kind::kAttentionModeChanged;
  event.step = rank.step;
  for (const char* layer : {"", "x", "-3", "1e9", "99999999999999"}) {
    event.labels = {{"layer", layer}, {"from", "full"}, {"to", "moba:1,1"}};
    rank.client.send(wire::EventMessage{rank.seq++, event});
  }
  event.labels = {};
  rank.client.send(wire::EventMessage{rank.seq++, event});
  rank.steps(4, {.jump = 1});
  ASSERT_TRUE(rank.acked());
  EXPECT_EQ(findings("spike_persistent").size(), 2U);
  EXPECT_EQ(running_.wait_for_events(event_kind::kAttentionModeChanged, 6).size(), 6U);
}

TEST_F(ParallelFindings, ModesAndTheirBaselinesOutliveACollector) {
  Sender rank{running_, 0};
  rank.steps(100, {.mode = 1});
  rank.announce("moba:512,3", "moba:128,8");
  rank.steps(100, {.jump = 1, .mode = 1});
  ASSERT_TRUE(rank.acked());
  running_.restart();
  Sender again{running_, 0};
  again.seq = rank.seq;
  again.step = rank.step;
  again.announce("moba:128,8", "moba:512,3");
  again.steps(4, {.jump = 1, .mode = 1});
  ASSERT_TRUE(again.acked());
  EXPECT_EQ(findings("spike_persistent").size(), 2U) << "judged against the steps 0 to 99";
}

TEST_F(ParallelFindings, LowReachIsRecordedWithItsRemedyAndNothingIsCommanded) {
  Sender rank{running_, 0};
  rank.steps(40, {.mode = 1, .block_reach = 0.1F});
  ASSERT_TRUE(rank.acked());
  const auto found = findings("attention_reach_low");
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].event.step, 31);
  EXPECT_EQ(found[0].event.severity, Severity::kWarning);
  EXPECT_EQ(found[0].event.labels.at("subject"), "layer 0");
  EXPECT_NE(found[0].event.reason.find("last_full 2"), std::string::npos) << found[0].event.reason;
  const auto actions = running_.wait_for_events(event_kind::kAction, 1);
  ASSERT_EQ(actions.size(), 1U);
  EXPECT_EQ(actions[0].event.labels.at("action"), "record");
  EXPECT_TRUE(running_.query()->commands("run-1")->empty());
}

TEST_F(ParallelFindings, RisingRankImbalanceAtFlatMaxvioIsRecorded) {
  Sender rank{running_, 0};
  rank.steps(100);
  rank.steps(20, {.rho = 2.5F});
  ASSERT_TRUE(rank.acked());
  EXPECT_EQ(findings("expert_imbalance").size(), 1U);
}

TEST_F(ParallelFindings, TheRankThatOthersWaitForIsNamedFromTheRowsOfAllRanks) {
  Sender first{running_, 0};
  Sender second{running_, 1};
  first.steps(50, {.wait_for_1 = 20e-3F});
  ASSERT_TRUE(first.acked());
  EXPECT_TRUE(findings("ep_rank_waited_for").empty()) << "one row is no matrix";
  second.steps(50, {.wait_for_1 = 20e-3F});
  ASSERT_TRUE(second.acked());
  const auto found = findings("ep_rank_waited_for");
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].event.labels.at("subject"), "EP rank 1");
  EXPECT_EQ(found[0].event.step, 31);
  EXPECT_EQ(found[0].rank, -1);
}

TEST_F(ParallelFindings, LimitsOfThePolicyFileAreTheDetectors) {
  running_.policy.reach.steps = 4;
  running_.policy.reach.block_reach = 0.05;
  running_.restart();
  Sender rank{running_, 0};
  rank.steps(10, {.mode = 1, .block_reach = 0.1F});
  rank.steps(10, {.mode = 1, .block_reach = 0.01F});
  ASSERT_TRUE(rank.acked());
  const auto found = findings("attention_reach_low");
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].event.step, 13);
}

}  // namespace
}  // namespace muster::collector
