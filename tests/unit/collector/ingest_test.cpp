// SPDX-License-Identifier: Apache-2.0
// The writer's work without threads: which answers a transaction earns, and in which order.
#include "collector/src/ingest.h"

#include "tests/unit/collector/fake_store.h"
#include "tests/unit/collector/scripted_client.h"

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>
#include <vector>

namespace muster::collector {
namespace {

class IngestOfTasks : public ::testing::Test {
 protected:
  std::shared_ptr<const Peer> open(std::uint64_t session_id, const wire::Hello& hello) {
    auto peer = std::make_shared<const Peer>(Peer{session_id, hello});
    handle(peer, SessionOpened{});
    return peer;
  }

  void handle(std::shared_ptr<const Peer> peer, Work work) {
    Task task{std::move(peer), std::move(work)};
    const Status status = ingest_.handle(task);
    EXPECT_TRUE(status.ok()) << status.to_string();
  }

  // The kinds of the committed replies: "welcome", "command", "ack 5", "goodbye", "broadcast".
  std::vector<std::string> commit() {
    std::vector<std::string> kinds;
    for (const Answer& answer : ingest_.committed()) {
      const auto* reply = std::get_if<Reply>(&answer);
      if (reply == nullptr) {
        kinds.emplace_back("broadcast");
      } else if (const auto* ack = std::get_if<wire::Ack>(&reply->message)) {
        kinds.push_back("ack " + std::to_string(ack->seq));
      } else if (std::holds_alternative<wire::Welcome>(reply->message)) {
        kinds.emplace_back("welcome");
      } else if (std::holds_alternative<wire::CommandMessage>(reply->message)) {
        kinds.emplace_back("command");
      } else if (std::holds_alternative<wire::CommandAccepted>(reply->message)) {
        kinds.emplace_back("accepted");
      } else if (std::holds_alternative<wire::Goodbye>(reply->message)) {
        kinds.emplace_back("goodbye");
      }
    }
    return kinds;
  }

  std::shared_ptr<FakeStoreState> state_{std::make_shared<FakeStoreState>()};
  FakeStore store_{state_};
  Policy policy_{policy::default_policy()};
  ManualClock clock_;
  Metrics metrics_;
  Ingest ingest_{store_, policy_, clock_, metrics_, [](const std::string&) { return History{}; }};
};

using Kinds = std::vector<std::string>;

TEST_F(IngestOfTasks, WelcomesThenListsCommandsThenAcks) {
  state_->commands = {Command{}, Command{}};
  state_->commands[0].id = CommandId{1};
  state_->commands[1].id = CommandId{2};
  const auto peer = open(1, agent_hello());
  handle(peer, wire::SchemaMessage{job_schema()});
  handle(peer, job_batch(1, 0, 3));
  EXPECT_TRUE(ingest_.urgent());
  EXPECT_EQ(commit(), (Kinds{"welcome", "command", "command", "ack 3"}));
  EXPECT_EQ(commit(), Kinds{});
}

TEST_F(IngestOfTasks, AcksOncePerTransaction) {
  const auto peer = open(1, agent_hello());
  handle(peer, wire::SchemaMessage{job_schema()});
  EXPECT_EQ(commit(), Kinds{"welcome"});
  handle(peer, job_batch(1, 0, 3));
  handle(peer, job_batch(4, 3, 3));
  EXPECT_FALSE(ingest_.urgent());
  EXPECT_EQ(commit(), Kinds{"ack 6"});
}

TEST_F(IngestOfTasks, AcksWhatIsStoredBeforeItsLastWord) {
  const auto peer = open(1, agent_hello());
  handle(peer, wire::SchemaMessage{job_schema()});
  handle(peer, job_batch(1, 0, 3));
  handle(peer, job_batch(0, 9, 1));
  handle(peer, job_batch(4, 3, 1));
  EXPECT_EQ(commit(), (Kinds{"welcome", "ack 3", "goodbye"}));
  EXPECT_EQ(state_->frames_stored, 3);
}

TEST_F(IngestOfTasks, RefusesFramesOfAnotherWidthThanTheirSchema) {
  const auto peer = open(1, agent_hello());
  handle(peer, wire::SchemaMessage{job_schema()});
  wire::SampleBatch batch = job_batch(1, 0, 1);
  batch.frames[0].values.pop_back();
  handle(peer, batch);
  EXPECT_EQ(commit(), (Kinds{"welcome", "goodbye"}));
  EXPECT_EQ(state_->frame_calls, 0);
}

TEST_F(IngestOfTasks, RefusesSequenceNumbersThatWouldWrap) {
  const auto peer = open(1, agent_hello());
  handle(peer, wire::SchemaMessage{job_schema()});
  handle(peer, job_batch(~std::uint64_t{0}, 0, 2));
  EXPECT_EQ(commit(), (Kinds{"welcome", "goodbye"}));
}

TEST_F(IngestOfTasks, KeepsFindingActionAndCommandInTheTransactionOfTheirFrame) {
  const auto peer = open(1, agent_hello());
  handle(peer, wire::SchemaMessage{job_schema()});
  static_cast<void>(commit());
  handle(peer, job_batch(1, 0, 1, {.logit = 1000.0F}));
  EXPECT_GE(state_->events.size(), 2U);
  EXPECT_EQ(state_->commands.size(), 1U);
  EXPECT_EQ(state_->commit_count, 0);
  EXPECT_EQ(commit(), (Kinds{"broadcast", "ack 1"}));
}

TEST_F(IngestOfTasks, FailsWhoeverWaitsWhenTheTransactionIsVoid) {
  static_cast<void>(open(1, agent_hello()));
  static_cast<void>(commit());
  IssueRequest request;
  request.request = {"run-1", CommandKind::kStop, 0, -1, "enough", "operator"};
  auto waiting = request.promise.get_future();
  handle(nullptr, std::move(request));
  ingest_.failed(io_error("commit", 5));
  EXPECT_EQ(waiting.get().status().code(), StatusCode::kIoError);
  EXPECT_EQ(commit(), Kinds{});
}

TEST_F(IngestOfTasks, IgnoresSessionsOfAVoidTransaction) {
  const auto peer = open(1, agent_hello());
  ingest_.failed(io_error("commit", 5));
  handle(peer, wire::SchemaMessage{job_schema()});
  handle(peer, job_batch(1, 0, 1));
  EXPECT_EQ(commit(), Kinds{});
  EXPECT_EQ(state_->frame_calls, 0);
}

}  // namespace
}  // namespace muster::collector
