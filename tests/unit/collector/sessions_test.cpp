// SPDX-License-Identifier: Apache-2.0
// Conversations with one peer: who is let in, what is stored and acked, what ends a connection.
#include "tests/support/eventually.h"
#include "tests/unit/collector/running_collector.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

namespace muster::collector {
namespace {

using std::chrono::milliseconds;

class Sessions : public ::testing::Test {
 protected:
  RunningCollector running_;
};

TEST_F(Sessions, WelcomesAnAgentWithTheEpochAndNothingAcked) {
  running_.start();
  ScriptedClient client{running_.collector().address()};
  client.send(agent_hello());
  const auto welcome = client.receive_next<wire::Welcome>();
  ASSERT_TRUE(welcome.has_value());
  EXPECT_EQ(welcome->version, wire::kProtocolVersion);
  EXPECT_EQ(welcome->collector_epoch, 1);
  EXPECT_EQ(welcome->acked_seq, 0U);
}

TEST_F(Sessions, StoresWhatItAcks) {
  running_.start();
  ScriptedClient client = running_.join_rank();
  client.send(job_batch(1, 0, 10));
  ASSERT_TRUE(client.receive_ack(10));
  const auto run = running_.query()->run("run-1");
  ASSERT_TRUE(run.ok()) << run.status().to_string();
  EXPECT_EQ(run->last_step, 9);
  EXPECT_EQ(run->sample_count, 10 * 7);
}

TEST_F(Sessions, StoresABatchThatComesTwiceOnce) {
  running_.start();
  ScriptedClient client = running_.join_rank();
  client.send(job_batch(1, 0, 10));
  client.send(job_batch(1, 0, 10));
  client.send(job_batch(6, 5, 10));
  ASSERT_TRUE(client.receive_ack(15));
  EXPECT_EQ(running_.query()->run("run-1")->sample_count, 15 * 7);
  EXPECT_EQ(running_.metric("muster_duplicate_frames_total"), "15");
}

// The hello of rank 0 of run-1 in its first generation, of the run `uid`.
wire::Hello hello_of(const std::string& uid) {
  wire::Hello hello = agent_hello(0);
  hello.identity.run_uid = uid;
  hello.identity.incarnation = "process of " + uid;
  return hello;
}

TEST_F(Sessions, KeepARunUnderTheNameOfADeletedOneAsALineOfItsOwn) {
  running_.start();
  for (const auto& [uid, loss] : {std::pair{"deleted", 2.1F}, std::pair{"new", 5.4F}}) {
    ScriptedClient client = running_.join(hello_of(uid));
    client.send(wire::SchemaMessage{job_schema()});
    client.send(job_batch(1, 0, 60, {.loss = loss}));
    ASSERT_TRUE(client.receive_ack(60));
  }
  EXPECT_EQ(running_.metric("muster_duplicate_frames_total"), "0");
  const auto query = running_.query();
  EXPECT_NEAR(query->run("run-1")->last_loss, 5.4, 1e-6);
  EXPECT_NEAR(query->run("run-1#2")->last_loss, 5.4, 1e-6);
  EXPECT_NEAR(query->run("run-1#1")->last_loss, 2.1, 1e-6);
  ASSERT_EQ(query->runs()->size(), 2U);
  EXPECT_EQ(query->runs()->at(0).run_id, "run-1#2");
  EXPECT_EQ(query->runs()->at(1).run_id, "run-1#1");
  const auto events = query->events("run-1", 0, 100).value();
  ASSERT_FALSE(events.empty());
  EXPECT_NE(events[0].event.reason.find("another run used the name 'run-1'"), std::string::npos);
}

TEST_F(Sessions, KeepTheLinesOfRunsApartOverARestartOfTheCollector) {
  running_.start();
  for (const char* uid : {"a", "b"}) {
    ScriptedClient client = running_.join(hello_of(uid));
    client.send(wire::SchemaMessage{job_schema()});
    client.send(job_batch(1, 0, 10));
    ASSERT_TRUE(client.receive_ack(10));
  }
  running_.restart();
  ScriptedClient client = running_.join(hello_of("a"));
  client.send(wire::SchemaMessage{job_schema()});
  client.send(job_batch(11, 10, 10));
  ASSERT_TRUE(client.receive_ack(20));
  EXPECT_EQ(running_.query()->run("run-1#1")->last_step, 19);
  EXPECT_EQ(running_.query()->run("run-1")->last_step, 9);
}

TEST_F(Sessions, ReportStepsThatAnotherProcessHasSentAlready) {
  running_.start();
  for (const char* incarnation : {"first", "second"}) {
    wire::Hello hello = agent_hello(0);
    hello.identity.incarnation = incarnation;
    ScriptedClient client = running_.join(hello);
    client.send(wire::SchemaMessage{job_schema()});
    client.send(job_batch(1, 0, 10));
    ASSERT_TRUE(client.receive_ack(10));
  }
  const auto events = running_.query()->events("run-1", 0, 100).value();
  ASSERT_EQ(events.size(), 1U);
  EXPECT_NE(events[0].event.reason.find("has from another process"), std::string::npos);
}

TEST_F(Sessions, TellsAReturningProcessWhatIsStored) {
  running_.start();
  ScriptedClient client = running_.join_rank();
  client.send(job_batch(1, 0, 10));
  ASSERT_TRUE(client.receive_ack(10));
  client.vanish();
  ScriptedClient again{running_.collector().address()};
  again.send(agent_hello());
  EXPECT_EQ(again.receive_next<wire::Welcome>()->acked_seq, 10U);
}

TEST_F(Sessions, EndsTheOlderOfTwoConnectionsOfOneProcess) {
  running_.start();
  ScriptedClient old = running_.join_rank();
  ScriptedClient fresh = running_.join_rank();
  EXPECT_TRUE(old.sees_end());
  fresh.send(job_batch(1, 0, 1));
  EXPECT_TRUE(fresh.receive_ack(1));
  EXPECT_TRUE(running_.wait_for_metric("muster_connected_agents{run=\"run-1\"}", "1"));
}

TEST_F(Sessions, StoresEventsAndDropCounts) {
  running_.start();
  ScriptedClient client = running_.join_rank();
  Event event;
  event.kind = event_kind::kStepSkipped;
  event.step = 3;
  event.reason = "2 non-finite gradients";
  event.inputs = {{"nonfinite", 2.0}};
  client.send(wire::EventMessage{1, event});
  client.send(wire::Heartbeat{3, 5, {1, 2, 4}});
  ASSERT_TRUE(client.receive_ack(1));
  const auto stored = running_.wait_for_events(event_kind::kStepSkipped, 1);
  ASSERT_EQ(stored.size(), 1U);
  EXPECT_EQ(stored[0].event, event);
  EXPECT_EQ(stored[0].rank, 0);
  EXPECT_TRUE(
      running_.wait_for_metric("muster_dropped_frames_total{run=\"run-1\",rank=\"0\"}", "7"));
}

TEST_F(Sessions, StoresAndAcksEachEventOfALauncher) {
  running_.start();
  ScriptedClient launcher = running_.join(launcher_hello());
  Event event;
  event.kind = event_kind::kRunStarted;
  launcher.send(wire::EventMessage{0, event});
  ASSERT_TRUE(launcher.receive_ack(0));
  launcher.send(wire::EventMessage{0, event});
  ASSERT_TRUE(launcher.receive_ack(0));
  EXPECT_EQ(running_.wait_for_events(event_kind::kRunStarted, 2).size(), 2U);
}

TEST_F(Sessions, TellsANewerPeerToUpgradeTheCollectorAndNotToRetry) {
  running_.start();
  ScriptedClient client{running_.collector().address()};
  wire::Hello hello = agent_hello();
  hello.version = 9;
  hello.version_min = 8;
  client.send(hello);
  const auto goodbye = client.receive_next<wire::Goodbye>();
  ASSERT_TRUE(goodbye.has_value());
  EXPECT_FALSE(goodbye->retry);
  EXPECT_NE(goodbye->reason.find("upgrade muster of the collector"), std::string::npos)
      << goodbye->reason;
  EXPECT_TRUE(client.sees_end());
}

TEST_F(Sessions, RefusesAWrongTokenAndTakesTheRightOne) {
  running_.options.token = "secret";
  running_.start();
  ScriptedClient stranger{running_.collector().address()};
  wire::Hello hello = agent_hello();
  hello.token = "secreT";
  stranger.send(hello);
  const auto goodbye = stranger.receive_next<wire::Goodbye>();
  ASSERT_TRUE(goodbye.has_value());
  EXPECT_FALSE(goodbye->retry);
  EXPECT_NE(goodbye->reason.find("token"), std::string::npos);
  hello.token = "secret";
  static_cast<void>(running_.join(hello));
  EXPECT_EQ(running_.metric("muster_sessions_refused_total"), "1");
}

TEST_F(Sessions, EndsOnlyTheConnectionThatSendsAnOversizeFrame) {
  running_.start();
  ScriptedClient neighbour = running_.join_rank(1);
  ScriptedClient client = running_.join_rank(0);
  client.send_bytes(std::vector<std::byte>(4, std::byte{0xFF}));
  const auto goodbye = client.receive_next<wire::Goodbye>();
  ASSERT_TRUE(goodbye.has_value());
  EXPECT_NE(goodbye->reason.find("4294967295"), std::string::npos) << goodbye->reason;
  EXPECT_TRUE(client.sees_end());
  neighbour.send(job_batch(1, 0, 1));
  EXPECT_TRUE(neighbour.receive_ack(1));
  EXPECT_EQ(running_.metric("muster_streams_damaged_total"), "1");
}

TEST_F(Sessions, TakesOnlySmallFramesFromStrangers) {
  running_.start();
  ScriptedClient client{running_.collector().address()};
  const std::size_t size = wire::kHelloBytesMax + 1;
  client.send_bytes(std::array{
      static_cast<std::byte>(size & 0xFFU),
      static_cast<std::byte>((size >> 8U) & 0xFFU),
      static_cast<std::byte>((size >> 16U) & 0xFFU),
      std::byte{0}});
  EXPECT_TRUE(client.receive_next<wire::Goodbye>().has_value());
}

TEST_F(Sessions, EndsAConnectionThatSendsGarbage) {
  running_.start();
  ScriptedClient client{running_.collector().address()};
  std::vector<std::byte> frame(4 + 32, std::byte{0xFF});
  frame[0] = std::byte{32};
  frame[1] = frame[2] = frame[3] = std::byte{0};
  client.send_bytes(frame);
  EXPECT_TRUE(client.receive_next<wire::Goodbye>().has_value());
  EXPECT_TRUE(client.sees_end());
}

TEST_F(Sessions, WantsAHelloFirst) {
  running_.start();
  ScriptedClient client{running_.collector().address()};
  client.send(wire::Heartbeat{});
  const auto goodbye = client.receive_next<wire::Goodbye>();
  ASSERT_TRUE(goodbye.has_value());
  EXPECT_NE(goodbye->reason.find("Hello"), std::string::npos);
}

TEST_F(Sessions, SkipsAMessageOfANewerProtocol) {
  running_.start();
  ScriptedClient client = running_.join_rank();
  // An envelope whose only field is number 999.
  client.send_bytes(std::array{
      std::byte{3},
      std::byte{0},
      std::byte{0},
      std::byte{0},
      std::byte{0xBA},
      std::byte{0x3E},
      std::byte{0}});
  client.send(job_batch(1, 0, 1));
  EXPECT_TRUE(client.receive_ack(1));
  EXPECT_EQ(running_.metric("muster_messages_unknown_total"), "1");
}

TEST_F(Sessions, RefusesSamplesBeforeTheirSchema) {
  running_.start();
  ScriptedClient client = running_.join(agent_hello());
  client.send(job_batch(1, 0, 1));
  const auto goodbye = client.receive_next<wire::Goodbye>();
  ASSERT_TRUE(goodbye.has_value());
  EXPECT_NE(goodbye->reason.find("schema"), std::string::npos);
}

TEST_F(Sessions, RefusesSequenceNumberZeroFromAnAgent) {
  running_.start();
  ScriptedClient client = running_.join_rank();
  client.send(job_batch(0, 0, 1));
  EXPECT_TRUE(client.receive_next<wire::Goodbye>().has_value());
}

TEST_F(Sessions, EndsAConnectionThatNeverFinishesItsHello) {
  running_.service.hello_timeout = milliseconds{30};
  running_.start();
  ScriptedClient client{running_.collector().address()};
  std::vector<std::byte> frame;
  ASSERT_TRUE(wire::append_frame(agent_hello(), frame).ok());
  client.send_bytes(std::span{frame}.first(frame.size() - 1));
  EXPECT_TRUE(client.receive_next<wire::Goodbye>().has_value());
  EXPECT_TRUE(client.sees_end());
}

TEST_F(Sessions, EndsAConnectionThatFallsSilent) {
  running_.manual_clock = std::make_shared<ManualClock>();
  running_.start();
  ScriptedClient client = running_.join_rank();
  client.send(job_batch(1, 0, 1));
  ASSERT_TRUE(client.receive_ack(1));  // All that was sent has been read.
  running_.manual_clock->advance(running_.service.idle_timeout + milliseconds{1});
  const auto goodbye = client.receive_next<wire::Goodbye>();
  ASSERT_TRUE(goodbye.has_value());
  EXPECT_TRUE(goodbye->retry);
  EXPECT_NE(goodbye->reason.find("heartbeat"), std::string::npos);
  EXPECT_TRUE(client.sees_end());
}

TEST_F(Sessions, ClosesOnAPeerThatDoesNotReadItsGoodbye) {
  running_.manual_clock = std::make_shared<ManualClock>();
  running_.start();
  const ScriptedClient client = running_.join_rank();
  EXPECT_TRUE(test::eventually([&] {
    running_.manual_clock->advance(running_.service.idle_timeout);
    return running_.metric("muster_sessions") == "0";
  }));
}

TEST_F(Sessions, SendsHeartbeatsToAQuietPeer) {
  running_.service.heartbeat_interval = milliseconds{10};
  running_.start();
  ScriptedClient client = running_.join_rank();
  EXPECT_TRUE(client.receives_heartbeat());
}

TEST_F(Sessions, EndsAConnectionWhoseOutboxOverflows) {
  running_.service.outbox_bytes_max = 8;
  running_.start();
  ScriptedClient client{running_.collector().address()};
  client.send(agent_hello());
  EXPECT_TRUE(client.sees_end());
  EXPECT_EQ(running_.metric("muster_outbox_overflows_total"), "1");
}

TEST_F(Sessions, TurnsAwayConnectionsBeyondTheLimit) {
  running_.service.sessions_max = 1;
  running_.start();
  const ScriptedClient first = running_.join_rank();
  ScriptedClient second{running_.collector().address()};
  EXPECT_TRUE(second.sees_end());
}

TEST_F(Sessions, NeverAcksBeforeTheCommit) {
  running_.fake_store = std::make_shared<FakeStoreState>();
  running_.start();
  ScriptedClient client = running_.join_rank();
  running_.fake_store->close_gate();
  client.send(job_batch(1, 0, 5));
  ASSERT_TRUE(running_.fake_store->wait_for_waiting_commit());
  EXPECT_FALSE(client.receive(milliseconds{50}).has_value());
  running_.fake_store->open_gate();
  EXPECT_TRUE(client.receive_ack(5));
}

TEST_F(Sessions, StartsSessionsOverWhenACommitFails) {
  running_.fake_store = std::make_shared<FakeStoreState>();
  running_.start();
  ScriptedClient client = running_.join_rank();
  running_.fake_store->close_gate();
  client.send(job_batch(1, 0, 5));
  ASSERT_TRUE(running_.fake_store->wait_for_waiting_commit());
  running_.fake_store->commits_to_fail = 1;
  running_.fake_store->open_gate();
  const auto word = client.receive();
  ASSERT_TRUE(word.has_value());
  const auto* goodbye = std::get_if<wire::Goodbye>(&*word);
  ASSERT_NE(goodbye, nullptr) << "an ack for what was not stored";
  EXPECT_TRUE(goodbye->retry);
  EXPECT_NE(goodbye->reason.find("disk full"), std::string::npos) << goodbye->reason;

  ScriptedClient again = running_.join_rank();
  again.send(job_batch(1, 0, 5));
  EXPECT_TRUE(again.receive_ack(5));
}

TEST_F(Sessions, StopReadingWhileTheStoreIsBehindAndLoseNothing) {
  running_.fake_store = std::make_shared<FakeStoreState>();
  running_.service.queue_tasks_max = 4;
  running_.start();
  ScriptedClient client = running_.join_rank();
  running_.fake_store->close_gate();
  constexpr std::uint64_t kBatches = 200;
  for (std::uint64_t i = 0; i < kBatches; ++i) {
    client.send(job_batch(1 + i, static_cast<std::int64_t>(i), 1));
  }
  ASSERT_TRUE(running_.wait_for_metric("muster_queue_full_total", "1"));
  running_.fake_store->open_gate();
  std::uint64_t acked = 0;
  while (const auto ack = client.receive_next<wire::Ack>()) {
    acked = ack->seq;
    if (acked == kBatches) {
      break;
    }
  }
  EXPECT_EQ(acked, kBatches);
  EXPECT_EQ(running_.fake_store->frames_stored, static_cast<int>(kBatches));
}

}  // namespace
}  // namespace muster::collector
