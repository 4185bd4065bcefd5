// SPDX-License-Identifier: Apache-2.0
// The collector dies and comes back on the same database; agents reconnect.
#include "tests/unit/collector/running_collector.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>

namespace muster::collector {
namespace {

constexpr const char* kStepOfRank0 = "train_step{run=\"run-1\",rank=\"0\"}";

class Restart : public ::testing::Test {
 protected:
  void SetUp() override { running_.start(); }

  RunningCollector running_;
};

TEST_F(Restart, RaisesTheEpochAndKnowsWhatItAcked) {
  ScriptedClient client = running_.join_rank();
  client.send(job_batch(1, 0, 10));
  ASSERT_TRUE(client.receive_ack(10));
  running_.restart();
  ScriptedClient again{running_.collector().address()};
  again.send(agent_hello());
  const auto welcome = again.receive_next<wire::Welcome>();
  ASSERT_TRUE(welcome.has_value());
  EXPECT_EQ(welcome->collector_epoch, 2);
  EXPECT_EQ(welcome->acked_seq, 10U);
}

TEST_F(Restart, AfterACrashTakesUnackedFramesAgainAndDoublesNothing) {
  running_.service.commit_interval = std::chrono::hours{1};
  running_.restart();
  ScriptedClient client = running_.join_rank();
  client.send(job_batch(1, 0, 10));
  ASSERT_TRUE(running_.wait_for_metric(kStepOfRank0, "9"));
  // Whoever waits for an answer makes the writer commit.
  ASSERT_TRUE(running_.collector().issue("run-1", CommandKind::kCheckpointNow, 0, "").ok());
  ASSERT_TRUE(client.receive_ack(10));
  client.send(job_batch(11, 10, 10));
  ASSERT_TRUE(running_.wait_for_metric(kStepOfRank0, "19"));

  running_.service.commit_interval = std::chrono::milliseconds{20};
  running_.crash_and_restart();
  EXPECT_EQ(running_.query()->run("run-1")->sample_count, 10 * 7);
  ScriptedClient again{running_.collector().address()};
  again.send(agent_hello());
  EXPECT_EQ(again.receive_next<wire::Welcome>()->acked_seq, 10U);
  again.send(wire::SchemaMessage{job_schema()});
  again.send(job_batch(1, 0, 10));
  again.send(job_batch(11, 10, 10));
  ASSERT_TRUE(again.receive_ack(20));
  EXPECT_EQ(running_.query()->run("run-1")->sample_count, 20 * 7);
  EXPECT_EQ(running_.query()->run("run-1")->last_step, 19);
}

TEST_F(Restart, StopCommitsWhatWasRead) {
  running_.service.commit_interval = std::chrono::hours{1};
  running_.restart();
  ScriptedClient client = running_.join_rank();
  client.send(job_batch(1, 0, 10));
  ASSERT_TRUE(running_.wait_for_metric(kStepOfRank0, "9"));
  running_.stop();
  EXPECT_EQ(running_.query()->run("run-1")->last_step, 9);
  EXPECT_TRUE(client.receive_next<wire::Goodbye>().has_value());
}

TEST_F(Restart, StopIsIdempotent) {
  running_.stop();
  running_.stop();
}

TEST_F(Restart, KeepsUnfinishedCommandsForTheGeneration) {
  static_cast<void>(running_.join_rank());
  ASSERT_TRUE(running_.collector().issue("run-1", CommandKind::kStop, 0, "enough").ok());
  running_.restart();
  ScriptedClient again = running_.join_rank();
  const auto command = again.receive_next<wire::CommandMessage>();
  ASSERT_TRUE(command.has_value());
  EXPECT_EQ(command->command.kind, CommandKind::kStop);
}

TEST_F(Restart, JudgesWithTheHistoryOfBefore) {
  ScriptedClient client = running_.join_rank();
  std::uint64_t seq = 1;
  for (std::int64_t step = 0; step < 300; ++step) {
    client.send(job_batch(seq++, step, 1, calm(step)));
  }
  ASSERT_TRUE(client.receive_ack(300));
  running_.restart();
  ScriptedClient again = running_.join_rank();
  for (std::int64_t step = 300; step < 304; ++step) {
    again.send(job_batch(seq++, step, 1, {.loss = 9.0F, .gradient_norm = 80.0F}));
  }
  const auto command = again.receive_next<wire::CommandMessage>();
  ASSERT_TRUE(command.has_value()) << "the windows were empty after the restart";
  EXPECT_EQ(command->command.kind, CommandKind::kCheckpointNow);
}

TEST_F(Restart, KnowsRunsThatNobodyHasJoinedYet) {
  static_cast<void>(running_.join_rank());
  running_.restart();
  EXPECT_TRUE(running_.collector().issue("run-1", CommandKind::kStop, 0, "enough").ok());
}

}  // namespace
}  // namespace muster::collector
