// SPDX-License-Identifier: Apache-2.0
// Faults of a host: it stops a process, its disk is full, it asks the job to leave while the job is
// still starting.
#include "tests/fault/small_disk.h"
#include "tests/integration/support/job.h"
#include "tests/support/eventually.h"

#include <muster/checkpoint/checkpoint.h>
#include <muster/common/clock.h>
#include <muster/common/file.h>
#include <muster/common/telemetry.h>
#include <muster/store/query.h>
#include <muster/store/store.h>

#include <gtest/gtest.h>

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace muster::test {
namespace {

constexpr auto kPatience = std::chrono::seconds{120};
constexpr int kLongRun = 200;  // long enough for a signal to arrive well before the end

JobOptions job(const ScratchFolder& folder, const std::string& name) {
  JobOptions options;
  options.folder = folder / name;
  options.name = name;
  return options;
}

// A database with one run at `path`, of a collector that still runs.
std::unique_ptr<store::Store> database_of_one_run(const std::string& path, const Clock& clock) {
  auto store = store::Store::open(path, clock);
  EXPECT_TRUE(store.ok()) << store.status().to_string();
  EXPECT_TRUE((*store)->open_session({"moby", Generation{1}, Rank{0}, "a"}, 1).ok());
  EXPECT_TRUE((*store)->commit().ok());
  return std::move(store).value();
}

TEST(ReadOnlyStorage, OfADatabaseThatNobodyWritesIsRead) {
  const ScratchFolder folder;
  const SystemClock clock;
  const SmallDisk disk{folder / "disk", std::size_t{8} << 20U};
  if (!disk.mounted()) {
    GTEST_SKIP() << disk.why_not();
  }
  const std::string path = folder / "disk/odd name?#%.db";
  database_of_one_run(path, clock).reset();
  disk.make_read_only();
  const auto query = store::Query::open(path);
  ASSERT_TRUE(query.ok()) << query.status().to_string();
  ASSERT_EQ((*query)->runs()->size(), 1U);
  EXPECT_EQ((*query)->run("moby")->run_id, "moby");
}

TEST(ReadOnlyStorage, NamesTheLogOfALiveDatabaseThatMustBeCopiedAlong) {
  const ScratchFolder folder;
  const SystemClock clock;
  const SmallDisk disk{folder / "disk", std::size_t{8} << 20U};
  if (!disk.mounted()) {
    GTEST_SKIP() << disk.why_not();
  }
  const auto live = database_of_one_run(folder / "live.db", clock);
  for (const std::string end : {"", "-wal"}) {
    std::filesystem::copy(folder / ("live.db" + end), folder / ("disk/copy.db" + end));
    std::filesystem::copy(folder / ("live.db" + end), folder / ("copy.db" + end));
  }
  const auto copy = store::Query::open(folder / "copy.db");
  ASSERT_TRUE(copy.ok()) << copy.status().to_string();
  EXPECT_EQ((*copy)->runs()->size(), 1U);
  disk.make_read_only();
  const auto query = store::Query::open(folder / "disk/copy.db");
  EXPECT_EQ(query.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(query.status().message().find("copy.db-wal"), std::string::npos)
      << query.status().message();
}

TEST(StoppedRank, IsNamedByItsPeersKilledAndLeavesNoTraceInTheParameters) {
  const ScratchFolder folder;
  JobOptions undisturbed = job(folder, "undisturbed");
  undisturbed.steps = kLongRun;
  ASSERT_EQ(run_to_end(undisturbed), 0);

  JobOptions options = job(folder, "stopped");
  options.steps = kLongRun;
  options.trainer = {"--print-every", "1"};
  Process running{command_line(options), {{"MUSTER_COLLECTIVE_TIMEOUT", "5"}}};
  ASSERT_TRUE(running.wait_for_output("step 9 ", Deadline::after(kPatience))) << running.output();
  const pid_t pid = announced_pid(running, 2);
  ASSERT_GT(pid, 0) << running.output();
  ASSERT_EQ(::kill(pid, SIGSTOP), 0);

  ASSERT_EQ(running.wait(Deadline::after(kPatience)), 0) << running.output();
  const std::string said = running.output();
  // Rank 3 may be missing too: it waits for rank 2 in their expert group.
  EXPECT_NE(said.find("rank 2 (pid " + std::to_string(pid) + ", stopped)"), std::string::npos)
      << said;
  EXPECT_NE(said.find("rank 2 (pid " + std::to_string(pid) + ") did not end"), std::string::npos)
      << said;
  EXPECT_NE(said.find("generation 2:"), std::string::npos) << said;
  EXPECT_NE(::kill(pid, 0), 0) << "the stopped process must be gone";
  EXPECT_TRUE(parameters_of(options) == parameters_of(undisturbed));
}

TEST(Preemption, WhileARankStillReadsItsDataEndsWith75AndGoesOnAsIfNothingHadHappened) {
  const ScratchFolder folder;
  JobOptions undisturbed = job(folder, "undisturbed");
  undisturbed.ranks = 1;
  ASSERT_EQ(run_to_end(undisturbed), 0);

  JobOptions options = job(folder, "early");
  options.ranks = 1;
  std::filesystem::create_directories(options.folder);
  const std::string pipe = options.folder + "/text.txt";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const auto running = launch(options);
  // Opening returns when the rank, at the other end, has come to its data.
  const int end = ::open(pipe.c_str(), O_WRONLY | O_CLOEXEC);
  ASSERT_GE(end, 0);
  running->signal(SIGTERM);
  ASSERT_TRUE(running->wait_for_output("asked to stop", Deadline::after(kPatience)));
  const std::string text = read_file(undisturbed.folder + "/text.txt").value_or("");
  const ssize_t written = ::write(end, text.data(), text.size());
  ::close(end);
  ASSERT_EQ(written, static_cast<ssize_t>(text.size()));
  ASSERT_EQ(running->wait(Deadline::after(kPatience)), 75) << running->output();

  ASSERT_EQ(::unlink(pipe.c_str()), 0);
  ASSERT_EQ(run_to_end(options), 0);
  EXPECT_TRUE(parameters_of(options) == parameters_of(undisturbed));
}

class FullDisk : public ::testing::Test {
 protected:
  static constexpr std::size_t kDiskBytes = std::size_t{8} << 20U;

  [[nodiscard]] JobOptions long_job(const std::string& name) const {
    JobOptions options = job(folder_, name);
    options.steps = 600;
    options.checkpoint_interval = 10;
    options.trainer = {"--print-every", "1"};
    return options;
  }

  [[nodiscard]] static std::int64_t newest_step(const JobOptions& options) {
    const auto newest = checkpoint::newest_verified(options.folder + "/checkpoints", options.name);
    return newest ? newest->step.value() : -1;
  }

  // Files that abandoned saves left behind.
  [[nodiscard]] static std::vector<std::string> unfinished(const JobOptions& options) {
    std::vector<std::string> names;
    for (const auto& entry :
         std::filesystem::directory_iterator(options.folder + "/checkpoints/" + options.name)) {
      if (entry.path().extension() == ".tmp") {
        names.push_back(entry.path().filename().string());
      }
    }
    return names;
  }

  [[nodiscard]] bool stores(const std::string& run, const std::string& kind) const {
    const auto query = store::Query::open(folder_ / "muster.db");
    const auto events = (*query)->events(run, 0, 10000).value_or({});
    return std::any_of(
        events.begin(), events.end(), [&](const auto& one) { return one.event.kind == kind; });
  }

  ScratchFolder folder_;
};

TEST_F(FullDisk, AbandonsTheSaveOnAllRanksTrainsOnAndSavesAgainWhenThereIsRoom) {
  JobOptions options = long_job("full");
  const SmallDisk disk{options.folder + "/checkpoints", kDiskBytes};
  if (!disk.mounted()) {
    GTEST_SKIP() << "no small disk to fill: " << disk.why_not();
  }
  const CollectorProcess collector{folder_ / "muster.db"};
  options.collector = collector.address();
  const auto running = launch(options);
  ASSERT_TRUE(eventually([&] { return newest_step(options) > 0; })) << running->output();

  disk.fill();
  ASSERT_TRUE(running->wait_for_output("event=checkpoint_failed", Deadline::after(kPatience)))
      << running->output();
  const std::int64_t before = newest_step(options);
  EXPECT_GT(before, 0) << "the last good checkpoint must stay";
  disk.make_room();
  ASSERT_TRUE(eventually([&] { return newest_step(options) > before; })) << running->output();

  ASSERT_EQ(running->wait(Deadline::after(kPatience)), 0) << running->output();
  EXPECT_EQ(running->output().find("generation 2"), std::string::npos) << "nobody may restart";
  EXPECT_EQ(newest_step(options), options.steps);
  EXPECT_EQ(unfinished(options), std::vector<std::string>{});
  EXPECT_TRUE(eventually([&] { return stores("full", event_kind::kCheckpointFailed); }));

  const JobOptions undisturbed = long_job("undisturbed");
  ASSERT_EQ(run_to_end(undisturbed), 0);
  EXPECT_TRUE(parameters_of(options) == parameters_of(undisturbed));
}

}  // namespace
}  // namespace muster::test
