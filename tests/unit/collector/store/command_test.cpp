// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/collector/store/store_fixture.h"

namespace muster::store {

namespace {

Command stop_command() {
  Command command;
  command.kind = CommandKind::kStop;
  command.argument = 0.5;
  command.expires_step = 99;
  command.reason = "enough";
  command.issuer = "operator";
  return command;
}

class CommandTest : public StoreTest {
 protected:
  void SetUp() override {
    StoreTest::SetUp();
    open_store();
    for (const std::int64_t generation : {1, 2, 3}) {
      for (const std::int32_t rank : {0, 1}) {
        EXPECT_TRUE(store_->open_session(rank_of("run", generation, rank), 2).ok());
      }
    }
  }

  std::uint64_t issue() { return store_->add_command("run", stop_command()).value().id.value(); }

  std::vector<std::uint64_t> ids_for(std::int64_t generation, std::uint64_t after = 0) {
    std::vector<std::uint64_t> ids;
    const auto commands = store_->commands_for("run", generation, after).value();
    for (const Command& command : commands) {
      ids.push_back(command.id.value());
    }
    return ids;
  }

  void report(
      std::int64_t generation,
      std::int32_t rank,
      std::uint64_t id,
      CommandState state,
      std::int64_t step = 7) {
    const Status status = store_->add_command_report(
        rank_of("run", generation, rank),
        ++seq_,
        {.id = CommandId{id}, .state = state, .step = step, .reason = "because"});
    EXPECT_TRUE(status.ok()) << status.to_string();
  }

  using Ids = std::vector<std::uint64_t>;

  std::uint64_t seq_{0};
};

}  // namespace

TEST_F(CommandTest, IdsCountFromOneInEachRun) {
  EXPECT_TRUE(store_->open_session(rank_of("other", 1, 0), 1).ok());
  EXPECT_EQ(issue(), 1U);
  EXPECT_EQ(issue(), 2U);
  EXPECT_EQ(store_->add_command("other", stop_command()).value().id.value(), 1U);
  EXPECT_EQ(store_->add_command("ghost", stop_command()).status().code(), StatusCode::kNotFound);
}

TEST_F(CommandTest, CommandComesBackAsItWentWithTheEpoch) {
  issue();
  Command expected = stop_command();
  expected.id = CommandId{1};
  expected.collector_epoch = store_->epoch();
  const auto commands = store_->commands_for("run", 1, 0).value();
  ASSERT_EQ(commands.size(), 1U);
  EXPECT_EQ(commands[0], expected);
}

TEST_F(CommandTest, NewCommandsAreAddedForARunningGeneration) {
  issue();
  EXPECT_EQ(ids_for(1), (Ids{1}));
  issue();
  EXPECT_EQ(ids_for(1), (Ids{1, 2}));
  EXPECT_EQ(ids_for(1, 1), (Ids{2}));
}

TEST_F(CommandTest, FinishedCommandsAreNotCarriedIntoTheNextGeneration) {
  for (int i = 0; i < 5; ++i) {
    issue();
  }
  EXPECT_EQ(ids_for(1), (Ids{1, 2, 3, 4, 5}));
  report(1, 0, 1, CommandState::kApplied);
  report(1, 0, 2, CommandState::kExpired);
  report(1, 1, 3, CommandState::kRejected);
  report(1, 0, 4, CommandState::kArmed);
  EXPECT_EQ(ids_for(2), (Ids{4, 5}));
}

TEST_F(CommandTest, ReportsOfTheGenerationItselfDoNotShortenItsList) {
  issue();
  issue();
  report(1, 0, 1, CommandState::kApplied);
  EXPECT_EQ(ids_for(1), (Ids{1, 2}));
}

TEST_F(CommandTest, LateReportOfAnOlderGenerationDoesNotChangeAFixedList) {
  issue();
  issue();
  EXPECT_EQ(ids_for(2), (Ids{1, 2}));
  report(1, 0, 1, CommandState::kApplied);
  EXPECT_EQ(ids_for(2), (Ids{1, 2}));
  EXPECT_EQ(ids_for(3), (Ids{2}));
}

TEST_F(CommandTest, FixedListSurvivesACrashWithoutACommit) {
  issue();
  issue();
  EXPECT_EQ(ids_for(2), (Ids{1, 2}));
  open_store();
  EXPECT_TRUE(store_->open_session(rank_of("run", 1, 0), 2).ok());
  report(1, 0, 1, CommandState::kApplied);
  commit();
  EXPECT_EQ(ids_for(2), (Ids{1, 2}));
}

TEST_F(CommandTest, StatusCountsRanksAndShowsTheState) {
  issue();
  issue();
  commit();
  EXPECT_EQ(query().commands("run").value()[0].state, CommandState::kIssued);
  report(1, 0, 1, CommandState::kArmed, -1);
  report(1, 1, 1, CommandState::kArmed, -1);
  commit();
  auto statuses = query().commands("run").value();
  ASSERT_EQ(statuses.size(), 2U);
  EXPECT_EQ(statuses[0].state, CommandState::kArmed);
  EXPECT_EQ(statuses[0].ranks_armed, 2);
  EXPECT_EQ(statuses[0].ranks_applied, 0);
  EXPECT_EQ(statuses[0].applied_step, -1);
  report(1, 0, 1, CommandState::kApplied, 12);
  report(1, 1, 1, CommandState::kApplied, 12);
  report(1, 0, 2, CommandState::kApplied, 13);
  report(1, 1, 2, CommandState::kRejected, 13);
  commit();
  statuses = query().commands("run").value();
  EXPECT_EQ(statuses[0].state, CommandState::kApplied);
  EXPECT_EQ(statuses[0].ranks_applied, 2);
  EXPECT_EQ(statuses[0].ranks_armed, 2);
  EXPECT_EQ(statuses[0].applied_step, 12);
  EXPECT_EQ(statuses[1].state, CommandState::kRejected);
  EXPECT_EQ(statuses[1].reason, "because");
}

TEST_F(CommandTest, FinalReportIsNotTakenBack) {
  issue();
  report(1, 0, 1, CommandState::kApplied, 12);
  report(1, 0, 1, CommandState::kArmed, -1);
  report(1, 0, 1, CommandState::kRejected, 20);
  commit();
  const auto statuses = query().commands("run").value();
  EXPECT_EQ(statuses[0].state, CommandState::kApplied);
  EXPECT_EQ(statuses[0].applied_step, 12);
}

TEST_F(CommandTest, ReportsOfOneSeqCountOnce) {
  issue();
  report(1, 0, 1, CommandState::kArmed);
  seq_ = 0;
  report(1, 0, 1, CommandState::kApplied);
  commit();
  EXPECT_EQ(query().commands("run").value()[0].state, CommandState::kArmed);
  EXPECT_EQ(store_->counters().duplicates, 1);
}

TEST_F(CommandTest, ReportWithoutASessionIsRefused) {
  EXPECT_EQ(
      store_->add_command_report(rank_of("run", 9, 0), 1, {}).code(),
      StatusCode::kFailedPrecondition);
}

}  // namespace muster::store
