// SPDX-License-Identifier: Apache-2.0
// From samples to findings, events and commands.
#include "tests/unit/collector/running_collector.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

namespace muster::collector {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// Loss and norm with a little deterministic unrest, so that their spread is not zero.
class Findings : public ::testing::Test {
 protected:
  void send(ScriptedClient& client, const StepValues& values) {
    wire::SampleBatch batch = job_batch(seq_, step_, 1, values);
    client.send(batch);
    ++seq_;
    ++step_;
  }

  void send_calm(ScriptedClient& client, int steps) {
    for (int i = 0; i < steps; ++i) {
      send(client, calm(step_));
    }
  }

  std::uint64_t seq_{1};
  std::int64_t step_{0};
  RunningCollector running_;
};

std::size_t count_rule(const std::vector<store::StoredEvent>& events, const std::string& rule) {
  std::size_t count = 0;
  for (const store::StoredEvent& stored : events) {
    const auto label = stored.event.labels.find("finding");
    count += label != stored.event.labels.end() && label->second == rule ? 1U : 0U;
  }
  return count;
}

TEST_F(Findings, OfANonFiniteLossAreRecordedWithStepAndReason) {
  running_.start();
  ScriptedClient client = running_.join_rank();
  send_calm(client, 3);
  send(client, {.loss = kNaN, .nonfinite_count = 4.0F, .skipped = 1.0F});
  const auto events = running_.wait_for_events(event_kind::kFinding, 1);
  ASSERT_GE(events.size(), 1U);
  EXPECT_EQ(events[0].event.labels.at("finding"), "nonfinite");
  EXPECT_EQ(events[0].event.step, 3);
  EXPECT_EQ(events[0].rank, -1);
  EXPECT_FALSE(events[0].event.reason.empty());
  EXPECT_FALSE(events[0].event.inputs.empty());
}

TEST_F(Findings, AreNotRepeatedWhenFramesComeAgain) {
  running_.start();
  ScriptedClient client = running_.join_rank();
  client.send(job_batch(1, 0, 3, {.loss = kNaN, .nonfinite_count = 1.0F}));
  ASSERT_TRUE(client.receive_ack(3));
  const std::size_t before = running_.wait_for_events(event_kind::kFinding, 1).size();
  client.vanish();
  ScriptedClient again = running_.join_rank();
  again.send(job_batch(1, 0, 3, {.loss = kNaN, .nonfinite_count = 1.0F}));
  again.send(job_batch(4, 3, 1, calm(3)));
  ASSERT_TRUE(again.receive_ack(4));
  EXPECT_EQ(running_.wait_for_events(event_kind::kFinding, before).size(), before);
}

TEST_F(Findings, OfOtherRanksJobColumnsAreIgnored) {
  running_.start();
  ScriptedClient client = running_.join_rank(1);
  client.send(job_batch(1, 0, 1, {.loss = kNaN, .nonfinite_count = 1.0F}));
  ASSERT_TRUE(client.receive_ack(1));
  EXPECT_EQ(running_.wait_for_events(event_kind::kFinding, 0).size(), 0U);
}

TEST_F(Findings, OfAPersistentSpikeBecomeAnAlarmAndACheckpointOnEveryRank) {
  running_.start();
  ScriptedClient first = running_.join_rank(0);
  ScriptedClient second = running_.join_rank(1);
  send_calm(first, 300);
  for (int i = 0; i < 4; ++i) {
    send(first, {.loss = 9.0F, .gradient_norm = 80.0F});
  }
  const auto command = first.receive_next<wire::CommandMessage>();
  ASSERT_TRUE(command.has_value());
  EXPECT_EQ(command->command.kind, CommandKind::kCheckpointNow);
  EXPECT_EQ(command->command.issuer.rfind("policy:", 0), 0U) << command->command.issuer;
  const auto same = second.receive_next<wire::CommandMessage>();
  ASSERT_TRUE(same.has_value());
  EXPECT_EQ(same->command, command->command);
  const auto events = running_.wait_for_events(event_kind::kFinding, 1);
  EXPECT_GE(count_rule(events, "spike_persistent"), 1U);
  EXPECT_GE(running_.wait_for_events(event_kind::kAction, 2).size(), 2U);
}

TEST_F(Findings, OfALargeLogitArmTheClip) {
  running_.policy.max_logit_threshold = 100.0;
  running_.start();
  ScriptedClient client = running_.join_rank();
  send_calm(client, 2);
  send(client, {.logit = 250.0F});
  send_calm(client, 10);
  const auto command = client.receive_next<wire::CommandMessage>();
  ASSERT_TRUE(command.has_value());
  EXPECT_EQ(command->command.kind, CommandKind::kSetQkClipThreshold);
  EXPECT_GT(command->command.argument, 0.0);
}

TEST_F(Findings, OfALostRankNameItWhileTheOthersGoOn) {
  running_.manual_clock = std::make_shared<ManualClock>();
  running_.start();
  ScriptedClient survivor = running_.join_rank(0);
  ScriptedClient victim = running_.join_rank(2);
  victim.send(wire::Heartbeat{41, 1, {}});
  victim.send(job_batch(1, 42, 1));
  ASSERT_TRUE(victim.receive_ack(1));
  victim.vanish();
  ASSERT_TRUE(running_.wait_for_metric("muster_connected_agents{run=\"run-1\"}", "1"));
  running_.manual_clock->advance(running_.service.rank_lost_after);
  send_calm(survivor, 1);
  const auto events = running_.wait_for_events(event_kind::kFinding, 1);
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].event.labels.at("finding"), "rank_lost");
  EXPECT_NE(events[0].event.reason.find("rank 2"), std::string::npos);
  EXPECT_EQ(events[0].event.step, 42);
}

}  // namespace
}  // namespace muster::collector
