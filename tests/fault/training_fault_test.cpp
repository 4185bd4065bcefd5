// SPDX-License-Identifier: Apache-2.0
// Ranks killed, poisoned and asked to leave: the final parameters must equal an undisturbed run's.
#include "tests/integration/support/job.h"

#include <muster/checkpoint/checkpoint.h>
#include <muster/common/random.h>

#include <gtest/gtest.h>

#include <signal.h>

#include <cstdio>
#include <map>

namespace muster::test {
namespace {

constexpr auto kPatience = std::chrono::seconds{120};
constexpr std::uint64_t kSeeds[] = {11, 12, 13, 14, 15};

JobOptions job(const ScratchFolder& folder, const std::string& name) {
  JobOptions options;
  options.folder = folder / name;
  options.name = name;
  return options;
}

constexpr int kLongRun = 200;  // long enough for a signal to arrive well before the end

// One undisturbed run of each length for all tests of the process.
const std::string& undisturbed_parameters(int steps = JobOptions{}.steps) {
  static std::map<int, std::string> of_length;
  const auto [entry, is_new] = of_length.try_emplace(steps);
  if (is_new) {
    const ScratchFolder folder;
    JobOptions options = job(folder, "undisturbed");
    options.steps = steps;
    EXPECT_EQ(run_to_end(options), 0);
    entry->second = parameters_of(options);
  }
  EXPECT_FALSE(entry->second.empty());
  return entry->second;
}

// A kill that comes after the last step would test nothing.
void expect_second_generation(const JobOptions& options) {
  const auto generation =
      checkpoint::current_generation(options.folder + "/checkpoints", options.name);
  ASSERT_TRUE(generation.ok()) << generation.status().to_string();
  EXPECT_EQ(generation->value(), 2) << "the kill must have happened, once";
}

class KilledRank : public ::testing::TestWithParam<int> {};

TEST_P(KilledRank, AtARandomStepLeavesNoTraceInTheParameters) {
  const int rank = GetParam();
  for (const std::uint64_t seed : kSeeds) {
    const auto step = Random(seed, static_cast<std::uint64_t>(rank)).below(24);
    std::printf(
        "seed %llu: kill -9 of rank %d in step %llu\n",
        static_cast<unsigned long long>(seed),
        rank,
        static_cast<unsigned long long>(step));
    const ScratchFolder folder;
    JobOptions options = job(folder, "killed");
    options.trainer = {"--inject-kill", std::to_string(rank) + ":" + std::to_string(step)};
    ASSERT_EQ(run_to_end(options), 0) << "seed " << seed;
    EXPECT_TRUE(parameters_of(options) == undisturbed_parameters()) << "seed " << seed;
    expect_second_generation(options);
  }
}

INSTANTIATE_TEST_SUITE_P(EachRank, KilledRank, ::testing::Range(0, 4));

TEST(KilledFromOutside, AtAnyMomentLeavesNoTraceInTheParameters) {
  for (const std::uint64_t seed : kSeeds) {
    Random random(seed, 77);
    const auto victim = static_cast<int>(random.below(4));
    const auto after_step = random.below(20);
    const ScratchFolder folder;
    JobOptions options = job(folder, "outside");
    options.steps = kLongRun;
    options.trainer = {"--print-every", "1"};
    const auto running = launch(options);
    ASSERT_TRUE(running->wait_for_output(
        "step " + std::to_string(after_step) + " ", Deadline::after(kPatience)))
        << running->output();
    const pid_t pid = announced_pid(*running, victim);
    ASSERT_GT(pid, 0) << running->output();
    std::printf(
        "seed %llu: kill -9 of rank %d (pid %d) after step %llu\n",
        static_cast<unsigned long long>(seed),
        victim,
        pid,
        static_cast<unsigned long long>(after_step));
    ::kill(pid, SIGKILL);
    ASSERT_EQ(running->wait(Deadline::after(kPatience)), 0) << running->output();
    expect_second_generation(options);
    EXPECT_TRUE(parameters_of(options) == undisturbed_parameters(kLongRun)) << "seed " << seed;
  }
}

TEST(NanOnOneRank, EqualsARunThatLeavesTheBatchOutOnAllRanks) {
  const ScratchFolder folder;
  JobOptions poisoned = job(folder, "poisoned");
  poisoned.trainer = {"--inject-nan", "1:9"};
  JobOptions left_out = job(folder, "left_out");
  left_out.trainer = {"--leave-out-batch", "9"};
  ASSERT_EQ(run_to_end(poisoned), 0);
  ASSERT_EQ(run_to_end(left_out), 0);
  ASSERT_FALSE(parameters_of(poisoned).empty());
  EXPECT_TRUE(parameters_of(poisoned) == parameters_of(left_out));
  EXPECT_FALSE(parameters_of(poisoned) == undisturbed_parameters()) << "the batch must matter";
}

TEST(Preemption, SavesAtOneStepExits75AndGoesOnAsIfNothingHadHappened) {
  const ScratchFolder folder;
  JobOptions options = job(folder, "preempted");
  options.steps = kLongRun;
  options.trainer = {"--print-every", "1"};
  const auto running = launch(options);
  ASSERT_TRUE(running->wait_for_output("step 20 ", Deadline::after(kPatience)));
  running->signal(SIGTERM);
  ASSERT_EQ(running->wait(Deadline::after(kPatience)), 75) << running->output();
  const auto saved = checkpoint::newest_verified(options.folder + "/checkpoints", "preempted");
  ASSERT_TRUE(saved.ok()) << saved.status().to_string();
  EXPECT_GE(saved->step.value(), 21);

  ASSERT_EQ(run_to_end(options), 0);
  EXPECT_TRUE(parameters_of(options) == undisturbed_parameters(kLongRun));
}

TEST(DamagedCheckpoint, FallsBackToTheOneBeforeAndEndsTheSame) {
  const ScratchFolder folder;
  JobOptions options = job(folder, "damaged");
  options.steps = kLongRun;
  options.trainer = {"--print-every", "1"};
  auto running = launch(options);
  ASSERT_TRUE(running->wait_for_output("step 100 ", Deadline::after(kPatience)));
  running->signal(SIGKILL);
  ASSERT_EQ(running->wait(Deadline::after(kPatience)), 128 + SIGKILL);
  const auto newest = checkpoint::newest_verified(options.folder + "/checkpoints", "damaged");
  ASSERT_TRUE(newest.ok()) << newest.status().to_string();
  const std::string file = (newest->path / "rank-1.safetensors").string();
  std::FILE* open = std::fopen(file.c_str(), "r+b");
  ASSERT_NE(open, nullptr);
  std::fseek(open, -5, SEEK_END);
  const int byte = std::fgetc(open);
  std::fseek(open, -5, SEEK_END);
  std::fputc(byte ^ 1, open);
  std::fclose(open);

  running = launch(options);
  ASSERT_EQ(running->wait(Deadline::after(kPatience)), 0) << running->output();
  EXPECT_NE(running->output().find(newest->path.filename().string()), std::string::npos)
      << "the damaged checkpoint must be named\n"
      << running->output();
  EXPECT_TRUE(parameters_of(options) == undisturbed_parameters(kLongRun));
}

}  // namespace
}  // namespace muster::test
