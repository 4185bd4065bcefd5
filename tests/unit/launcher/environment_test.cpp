// SPDX-License-Identifier: Apache-2.0
#include "launcher/src/environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster::launcher {

namespace {

using ::testing::Contains;
using ::testing::Not;
using ::testing::StartsWith;

LauncherOptions options() {
  LauncherOptions options;
  options.process_count = 4;
  options.run_id = "moby";
  options.checkpoint_root = "/ckpt";
  options.spool_directory = "/spool";
  return options;
}

std::vector<std::string> environment(
    const LauncherOptions& from, const std::vector<std::string>& inherited) {
  return rank_environment(
      from, {Generation{7}, "/ckpt/moby/step-5.gen-6", 4242}, 3, "abc", inherited);
}

}  // namespace

TEST(RankEnvironment, ReplacesInheritedValuesOfItsOwnVariables) {
  const auto all = environment(options(), {"RANK=9", "MUSTER_GENERATION=1", "HOME=/root"});
  EXPECT_THAT(all, Contains("RANK=3"));
  EXPECT_THAT(all, Not(Contains("RANK=9")));
  EXPECT_THAT(all, Contains("MUSTER_GENERATION=7"));
  EXPECT_THAT(all, Contains("MUSTER_RESUME_FROM=/ckpt/moby/step-5.gen-6"));
  EXPECT_THAT(all, Contains("MASTER_PORT=4242"));
  EXPECT_THAT(all, Contains("HOME=/root"));
}

TEST(RankEnvironment, LimitsBlasThreadsUnlessTheyAreSet) {
  EXPECT_THAT(environment(options(), {}), Contains("OMP_NUM_THREADS=1"));
  EXPECT_THAT(environment(options(), {}), Contains("OPENBLAS_NUM_THREADS=1"));
  const auto set = environment(options(), {"OMP_NUM_THREADS=6"});
  EXPECT_THAT(set, Contains("OMP_NUM_THREADS=6"));
  EXPECT_THAT(set, Not(Contains("OMP_NUM_THREADS=1")));
}

TEST(RankEnvironment, LeavesCollectorAndTokenToTheCallerWhenNotGiven) {
  EXPECT_THAT(environment(options(), {}), Not(Contains(StartsWith("MUSTER_COLLECTOR="))));
  EXPECT_THAT(
      environment(options(), {"MUSTER_COLLECTOR=there:1"}), Contains("MUSTER_COLLECTOR=there:1"));
  LauncherOptions given = options();
  given.collector = "here:2";
  given.token_file = "/token";
  EXPECT_THAT(
      environment(given, {"MUSTER_COLLECTOR=there:1"}), Contains("MUSTER_COLLECTOR=here:2"));
  EXPECT_THAT(environment(given, {}), Contains("MUSTER_TOKEN_FILE=/token"));
}

TEST(RankEnvironment, ExtraVariablesWin) {
  LauncherOptions more = options();
  more.environment["OMP_NUM_THREADS"] = "2";
  EXPECT_THAT(environment(more, {}), Contains("OMP_NUM_THREADS=2"));
}

}  // namespace muster::launcher
