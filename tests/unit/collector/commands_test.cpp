// SPDX-License-Identifier: Apache-2.0
// Commands: from an operator to every rank of the newest generation, in one order.
#include "tests/unit/collector/running_collector.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace muster::collector {
namespace {

class Commands : public ::testing::Test {
 protected:
  void SetUp() override { running_.start(); }

  std::uint64_t request(
      ScriptedClient& issuer, CommandKind kind, double argument = 0, std::int64_t expires = -1) {
    issuer.send(wire::CommandRequest{"run-1", kind, argument, expires, "because", "alice"});
    const auto accepted = issuer.receive_next<wire::CommandAccepted>();
    return accepted.has_value() ? accepted->id.value() : 0;
  }

  static std::vector<Command> receive_commands(ScriptedClient& client, std::size_t count) {
    std::vector<Command> commands;
    while (commands.size() < count) {
      const auto message = client.receive_next<wire::CommandMessage>();
      if (!message.has_value()) {
        break;
      }
      commands.push_back(message->command);
    }
    return commands;
  }

  RunningCollector running_;
};

TEST_F(Commands, ReachEveryRankInTheOrderOfTheirIds) {
  ScriptedClient first = running_.join_rank(0);
  ScriptedClient second = running_.join_rank(1);
  ScriptedClient issuer = running_.join(operator_hello());
  EXPECT_EQ(request(issuer, CommandKind::kCheckpointNow), 1U);
  EXPECT_EQ(request(issuer, CommandKind::kSetQkClipThreshold, 50.0), 2U);
  const std::vector<Command> commands = receive_commands(first, 2);
  ASSERT_EQ(commands.size(), 2U);
  EXPECT_EQ(commands[0].id, CommandId{1});
  EXPECT_EQ(commands[0].collector_epoch, 1);
  EXPECT_EQ(commands[0].issuer, "alice");
  EXPECT_EQ(commands[1].id, CommandId{2});
  EXPECT_DOUBLE_EQ(commands[1].argument, 50.0);
  EXPECT_EQ(receive_commands(second, 2), commands);
}

TEST_F(Commands, ReachALateRankOfTheGenerationAsTheSameList) {
  ScriptedClient first = running_.join_rank(0);
  ScriptedClient issuer = running_.join(operator_hello());
  ASSERT_EQ(request(issuer, CommandKind::kCheckpointNow), 1U);
  ASSERT_EQ(request(issuer, CommandKind::kStop), 2U);
  ScriptedClient late = running_.join_rank(1);
  ASSERT_EQ(request(issuer, CommandKind::kSkipStep), 3U);
  const std::vector<Command> commands = receive_commands(first, 3);
  ASSERT_EQ(commands.size(), 3U);
  EXPECT_EQ(receive_commands(late, 3), commands);
}

TEST_F(Commands, AreNotSentAgainToAProcessThatAppliedThem) {
  static_cast<void>(running_.join_rank(0));
  ScriptedClient issuer = running_.join(operator_hello());
  ASSERT_EQ(request(issuer, CommandKind::kCheckpointNow), 1U);
  ASSERT_EQ(request(issuer, CommandKind::kSkipStep), 2U);
  wire::Hello hello = agent_hello(1);
  hello.last_applied_command = 1;
  ScriptedClient client = running_.join(hello);
  const std::vector<Command> commands = receive_commands(client, 1);
  ASSERT_EQ(commands.size(), 1U);
  EXPECT_EQ(commands[0].id, CommandId{2});
}

TEST_F(Commands, FinishedByOneGenerationDoNotReachTheNext) {
  ScriptedClient client = running_.join_rank(0, 1);
  ScriptedClient issuer = running_.join(operator_hello());
  ASSERT_EQ(request(issuer, CommandKind::kCheckpointNow), 1U);
  ASSERT_EQ(request(issuer, CommandKind::kSkipStep), 2U);
  CommandReport report;
  report.id = CommandId{1};
  report.state = CommandState::kApplied;
  report.step = 5;
  client.send(wire::CommandReportMessage{1, report});
  ASSERT_TRUE(client.receive_ack(1));
  ScriptedClient next = running_.join_rank(0, 2);
  const std::vector<Command> commands = receive_commands(next, 1);
  ASSERT_EQ(commands.size(), 1U);
  EXPECT_EQ(commands[0].id, CommandId{2});
}

TEST_F(Commands, OfTheNewestGenerationDoNotReachAnOlderProcess) {
  ScriptedClient old = running_.join_rank(0, 1);
  ScriptedClient fresh = running_.join_rank(0, 2);
  ScriptedClient issuer = running_.join(operator_hello());
  ASSERT_EQ(request(issuer, CommandKind::kStop), 1U);
  ASSERT_EQ(receive_commands(fresh, 1).size(), 1U);
  old.send(job_batch(1, 0, 1));
  const auto next = old.receive();
  ASSERT_TRUE(next.has_value());
  // The schema was sent by join_rank: the answer is the ack, and no command before it.
  EXPECT_TRUE(std::holds_alternative<wire::Ack>(*next));
}

TEST_F(Commands, ExpireRelativeToTheNewestStep) {
  ScriptedClient client = running_.join_rank(0);
  client.send(job_batch(1, 0, 101));
  ASSERT_TRUE(client.receive_ack(101));
  ScriptedClient issuer = running_.join(operator_hello());
  ASSERT_EQ(request(issuer, CommandKind::kSkipStep, 0, 20), 1U);
  EXPECT_EQ(receive_commands(client, 1).at(0).expires_step, 120);
}

TEST_F(Commands, AreReportedByRank) {
  ScriptedClient client = running_.join_rank(0);
  ScriptedClient issuer = running_.join(operator_hello());
  ASSERT_EQ(request(issuer, CommandKind::kCheckpointNow), 1U);
  CommandReport report;
  report.id = CommandId{1};
  report.state = CommandState::kApplied;
  report.step = 17;
  report.parameter_digest = 99;
  client.send(wire::CommandReportMessage{1, report});
  ASSERT_TRUE(client.receive_ack(1));
  const auto statuses = running_.query()->commands("run-1");
  ASSERT_TRUE(statuses.ok());
  ASSERT_EQ(statuses->size(), 1U);
  EXPECT_EQ(statuses->front().state, CommandState::kApplied);
  EXPECT_EQ(statuses->front().applied_step, 17);
}

TEST_F(Commands, ComeFromTheLauncherToo) {
  ScriptedClient client = running_.join_rank(0);
  ScriptedClient launcher = running_.join(launcher_hello());
  EXPECT_EQ(request(launcher, CommandKind::kStop), 1U);
  EXPECT_EQ(receive_commands(client, 1).size(), 1U);
}

TEST_F(Commands, DoNotComeFromAgents) {
  ScriptedClient client = running_.join_rank(0);
  client.send(wire::CommandRequest{"run-1", CommandKind::kStop, 0, -1, "", ""});
  const auto goodbye = client.receive_next<wire::Goodbye>();
  ASSERT_TRUE(goodbye.has_value());
  EXPECT_NE(goodbye->reason.find("agent"), std::string::npos);
}

TEST_F(Commands, ToStopARunThatHasEndedAreRefusedWithItsEnd) {
  ScriptedClient launcher = running_.join(launcher_hello());
  Event ended;
  ended.kind = event_kind::kRunEnded;
  ended.reason = "ended with code 0: all ranks are done";
  launcher.send(wire::EventMessage{1, ended});
  ASSERT_TRUE(launcher.receive_ack(1));
  const auto refused = running_.collector().issue("run-1", CommandKind::kStop, 0, "enough");
  EXPECT_EQ(refused.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(
      refused.status().message().find("'run-1' has ended (ended with code 0"), std::string::npos)
      << refused.status().message();
  running_.restart();
  EXPECT_FALSE(running_.collector().issue("run-1", CommandKind::kStop, 0, "enough").ok());
  EXPECT_TRUE(running_.collector().issue("run-1", CommandKind::kCheckpointNow, 0, "").ok());
  ScriptedClient rank = running_.join(agent_hello(0, 2));
  EXPECT_TRUE(running_.collector().issue("run-1", CommandKind::kStop, 0, "enough").ok());
}

TEST_F(Commands, ForAnUnknownRunAreRefusedByName) {
  ScriptedClient issuer = running_.join(operator_hello());
  issuer.send(wire::CommandRequest{"run-9", CommandKind::kStop, 0, -1, "", ""});
  const auto goodbye = issuer.receive_next<wire::Goodbye>();
  ASSERT_TRUE(goodbye.has_value());
  EXPECT_FALSE(goodbye->retry);
  EXPECT_NE(goodbye->reason.find("run-9"), std::string::npos);
}

TEST_F(Commands, WithAThresholdThatIsNoNumberAreRefused) {
  static_cast<void>(running_.join_rank(0));
  const auto refused = running_.collector().issue(
      "run-1", CommandKind::kSetQkClipThreshold, std::numeric_limits<double>::quiet_NaN(), "");
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
}

TEST_F(Commands, IssuedByTheDashboardReturnTheirIdWhenStored) {
  ScriptedClient client = running_.join_rank(0);
  const auto id = running_.collector().issue("run-1", CommandKind::kStop, 0, "enough");
  ASSERT_TRUE(id.ok()) << id.status().to_string();
  EXPECT_EQ(*id, CommandId{1});
  EXPECT_EQ(running_.query()->commands("run-1")->size(), 1U);
  EXPECT_EQ(receive_commands(client, 1).at(0).issuer, "operator");
}

TEST_F(Commands, IssuedForAnUnknownRunAreNotFound) {
  const auto id = running_.collector().issue("run-9", CommandKind::kStop, 0, "");
  EXPECT_EQ(id.status().code(), StatusCode::kNotFound);
}

TEST_F(Commands, IssuedAfterStopAreUnavailable) {
  running_.stop();
  const auto id = running_.collector().issue("run-1", CommandKind::kStop, 0, "");
  EXPECT_EQ(id.status().code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace muster::collector
