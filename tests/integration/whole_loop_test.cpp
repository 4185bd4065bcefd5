// SPDX-License-Identifier: Apache-2.0
// The whole loop with real processes: collector, launcher, four ranks.
#include "tests/integration/support/job.h"
#include "tests/support/eventually.h"

#include <muster/checkpoint/checkpoint.h>
#include <muster/common/file.h>
#include <muster/store/query.h>

#include <gtest/gtest.h>

#include <signal.h>

#include <cmath>
#include <optional>
#include <set>
#include <string>

namespace muster::test {
namespace {

constexpr auto kPatience = std::chrono::seconds{120};

class WholeLoop : public ::testing::Test {
 protected:
  [[nodiscard]] std::string database() const { return folder_ / "muster.db"; }

  [[nodiscard]] JobOptions job(const std::string& name, const std::string& collector = {}) const {
    JobOptions options;
    options.folder = folder_ / name;
    options.name = name;
    options.collector = collector;
    return options;
  }

  [[nodiscard]] std::unique_ptr<store::Query> query() const {
    auto opened = store::Query::open(database());
    EXPECT_TRUE(opened.ok()) << opened.status().to_string();
    return std::move(opened).value();
  }

  // `muster send`: waits until the collector has taken the command.
  static void send(
      const CollectorProcess& collector, const std::string& run, const std::string& what) {
    Process process(
        {muster_program(),
         "send",
         "--collector",
         collector.address(),
         "--run",
         run,
         what,
         "--reason",
         "test"});
    EXPECT_EQ(process.wait(Deadline::after(kPatience)), 0) << process.output();
  }

  // The operator's command of a kind once all four ranks have applied it. The collector's policy
  // may give commands too.
  [[nodiscard]] std::optional<store::CommandStatus> applied(
      const std::string& run, CommandKind kind) const {
    for (const store::CommandStatus& one : query()->commands(run).value_or({})) {
      if (one.command.issuer == "operator" && one.command.kind == kind && one.ranks_applied == 4) {
        return one;
      }
    }
    return std::nullopt;
  }

  [[nodiscard]] std::int64_t series_of(
      store::Query& query, const std::string& run, const std::string& name, int rank = -1) const {
    for (const store::SeriesInfo& one : query.series(run).value_or({})) {
      if (one.name == name && one.rank == rank && one.group.empty() && one.layer < 0) {
        return one.series_id;
      }
    }
    ADD_FAILURE() << "no series " << name << " of rank " << rank;
    return -1;
  }

  // Steps with exactly one stored value.
  [[nodiscard]] std::set<std::int64_t> steps_of(
      const std::string& run, const std::string& name, int rank, std::int64_t generation) const {
    const auto open = query();
    const auto range =
        open->range(run, series_of(*open, run, name, rank), generation, 0, -1, 1 << 16);
    EXPECT_TRUE(range.ok()) << range.status().to_string();
    std::set<std::int64_t> steps;
    for (const store::Bucket& bucket : range.ok() ? range->buckets : std::vector<store::Bucket>{}) {
      EXPECT_EQ(bucket.count + bucket.nonfinite_count, 1U) << name << " at " << bucket.step_first;
      steps.insert(bucket.step_first);
    }
    return steps;
  }

  [[nodiscard]] static std::set<std::int64_t> all_steps(std::int64_t count) {
    std::set<std::int64_t> steps;
    for (std::int64_t step = 0; step < count; ++step) {
      steps.insert(step);
    }
    return steps;
  }

  ScratchFolder folder_;
};

TEST_F(WholeLoop, StoresEveryStepOfEveryRankExactlyOnce) {
  CollectorProcess collector(database());
  ASSERT_EQ(run_to_end(job("plain", collector.address())), 0);
  ASSERT_TRUE(eventually([&] { return query()->run("plain").value_or({}).last_step == 23; }));
  EXPECT_EQ(steps_of("plain", "train_loss_nats", -1, 1), all_steps(24));
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(steps_of("plain", "train_step_seconds", rank, 1), all_steps(24)) << rank;
  }
  EXPECT_EQ(query()->run("plain")->dropped_count, 0);
}

TEST_F(WholeLoop, CommitsCheckpointsOnTheWayAndAtTheEnd) {
  const JobOptions options = job("saving");
  ASSERT_EQ(run_to_end(options), 0);
  const auto found = checkpoint::list(options.folder + "/checkpoints", "saving");
  ASSERT_TRUE(found.ok()) << found.status().to_string();
  ASSERT_FALSE(found->empty());
  EXPECT_EQ(found->front().step.value(), 24);
  EXPECT_GE(found->size(), 2U);
  for (const checkpoint::CheckpointInfo& one : *found) {
    // One that falls due while the last is still being written begins when that one has ended.
    EXPECT_GE(one.step.value(), 6);
    EXPECT_TRUE(checkpoint::verify(one.path).ok()) << one.path;
  }
}

TEST_F(WholeLoop, TwoRunsOfTheSameJobEndWithEqualParametersBitForBit) {
  const JobOptions first = job("first");
  const JobOptions second = job("second");
  ASSERT_EQ(run_to_end(first), 0);
  ASSERT_EQ(run_to_end(second), 0);
  ASSERT_FALSE(parameters_of(first).empty());
  EXPECT_TRUE(parameters_of(first) == parameters_of(second));
}

TEST_F(WholeLoop, AnOperatorsStopEndsAllRanksAtOneStepWithACheckpoint) {
  CollectorProcess collector(database());
  JobOptions options = job("stopped", collector.address());
  options.steps = 100'000;
  options.checkpoint_interval = 0;
  const auto running = launch(options);
  ASSERT_TRUE(eventually([&] { return query()->run("stopped").value_or({}).last_step > 5; }));
  send(collector, "stopped", "stop");
  ASSERT_EQ(running->wait(Deadline::after(kPatience)), 93) << running->output();
  EXPECT_NE(
      running->output().find("exited with code 93 (never restart): command 1 of "),
      std::string::npos)
      << running->output();

  std::optional<store::CommandStatus> stop;
  ASSERT_TRUE(
      eventually([&] { return (stop = applied("stopped", CommandKind::kStop)).has_value(); }));
  const auto saved = checkpoint::list(options.folder + "/checkpoints", "stopped");
  ASSERT_TRUE(saved.ok() && !saved->empty());
  EXPECT_EQ(saved->front().step.value(), stop->applied_step + 1);
}

TEST_F(WholeLoop, ACheckpointCommandIsCommittedAndTrainingGoesOn) {
  CollectorProcess collector(database());
  JobOptions options = job("asked", collector.address());
  options.steps = 100'000;  // The stop ends it, however late the commands come.
  options.checkpoint_interval = 0;
  const auto running = launch(options);
  const auto last_step = [&] { return query()->run("asked").value_or({}).last_step; };
  ASSERT_TRUE(eventually([&] { return last_step() > 2; }));
  send(collector, "asked", "checkpoint");
  std::optional<store::CommandStatus> asked;
  ASSERT_TRUE(eventually(
      [&] { return (asked = applied("asked", CommandKind::kCheckpointNow)).has_value(); }));
  const auto saved_steps = [&] {
    std::set<std::int64_t> steps;
    for (const auto& one :
         checkpoint::list(options.folder + "/checkpoints", "asked").value_or({})) {
      steps.insert(one.step.value());
    }
    return steps;
  };
  ASSERT_TRUE(eventually([&] { return saved_steps().contains(asked->applied_step + 1); }));
  ASSERT_TRUE(eventually([&] { return last_step() > asked->applied_step + 5; }));
  send(collector, "asked", "stop");
  ASSERT_EQ(running->wait(Deadline::after(kPatience)), 93) << running->output();
  EXPECT_GE(saved_steps().size(), 2U);  // the asked one and the final one
}

TEST_F(WholeLoop, OneRankAndFourRanksLearnTheSame) {
  JobOptions one = job("one");
  JobOptions four = job("four");
  one.ranks = 1;
  one.trainer = {"--log-loss", one.folder + "/loss"};
  four.trainer = {"--log-loss", four.folder + "/loss"};
  ASSERT_EQ(run_to_end(one), 0);
  ASSERT_EQ(run_to_end(four), 0);
  const auto loss_of = [](const JobOptions& options) {
    const std::string text = read_file(options.folder + "/loss").value_or("");
    return std::stod(text.substr(text.rfind(',') + 1));
  };
  // fp32 sums in another order, over 24 steps: parts in 10^4.
  EXPECT_NEAR(loss_of(one), loss_of(four), 2e-3);
}

}  // namespace
}  // namespace muster::test
