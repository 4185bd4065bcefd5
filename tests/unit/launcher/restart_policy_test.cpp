// SPDX-License-Identifier: Apache-2.0
#include "launcher/src/restart_policy.h"

#include <gtest/gtest.h>

namespace muster::launcher {

namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

LauncherOptions policy_options() {
  LauncherOptions options;
  options.restarts_max = 3;
  options.restart_window = seconds{100};
  options.no_progress_restarts_max = 50;
  options.backoff_first = seconds{1};
  options.backoff_max = seconds{8};
  options.jitter_seed = 7;
  return options;
}

MonotonicTime at(int second) {
  return MonotonicTime{seconds{second}};
}

}  // namespace

TEST(RestartPolicy, SpendsTheBudgetWithinTheWindow) {
  RestartPolicy policy{policy_options(), -1};
  EXPECT_TRUE(policy.decide(at(0), -1).restart);
  EXPECT_TRUE(policy.decide(at(1), -1).restart);
  EXPECT_TRUE(policy.decide(at(2), -1).restart);
  const RestartDecision last = policy.decide(at(99), -1);
  EXPECT_FALSE(last.restart);
  EXPECT_EQ(last.exit_code, kExitFailed);
  EXPECT_EQ(last.reason, "the budget of 3 restarts within 100 s is used up");
}

TEST(RestartPolicy, ForgetsRestartsThatLeftTheWindow) {
  RestartPolicy policy{policy_options(), -1};
  for (const int second : {0, 50, 99}) {
    EXPECT_TRUE(policy.decide(at(second), -1).restart);
  }
  EXPECT_TRUE(policy.decide(at(100), -1).restart);
  EXPECT_FALSE(policy.decide(at(101), -1).restart);
}

TEST(RestartPolicy, StopsWhenTheCommittedStepStands) {
  LauncherOptions strict = policy_options();
  strict.no_progress_restarts_max = 2;
  RestartPolicy policy{strict, 40};
  EXPECT_TRUE(policy.decide(at(0), 40).restart);
  EXPECT_TRUE(policy.decide(at(200), 40).restart);
  const RestartDecision last = policy.decide(at(400), 40);
  EXPECT_EQ(last.exit_code, kExitNeverRestart);
  EXPECT_NE(last.reason.find("still 40"), std::string::npos) << last.reason;
}

TEST(RestartPolicy, ProgressStartsTheCountAgain) {
  LauncherOptions strict = policy_options();
  strict.no_progress_restarts_max = 1;
  RestartPolicy policy{strict, -1};
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(policy.decide(at(i * 200), i * 10).restart) << i;
  }
  EXPECT_FALSE(policy.decide(at(20 * 200), 190).restart);
}

TEST(RestartPolicy, AnOlderStepIsNoProgress) {
  LauncherOptions strict = policy_options();
  strict.no_progress_restarts_max = 1;
  RestartPolicy policy{strict, 40};
  EXPECT_TRUE(policy.decide(at(0), 30).restart);
  EXPECT_FALSE(policy.decide(at(200), 35).restart);
}

TEST(RestartPolicy, RestartsAtOnceFirstThenBacksOffWithJitter) {
  LauncherOptions many = policy_options();
  many.restarts_max = 100;
  RestartPolicy policy{many, -1};
  EXPECT_EQ(policy.decide(at(0), -1).delay, seconds{0});
  for (const int nominal : {1, 2, 4, 8, 8, 8}) {
    const auto delay = policy.decide(at(0), -1).delay;
    EXPECT_GE(delay, milliseconds{nominal * 750});
    EXPECT_LE(delay, milliseconds{nominal * 1250});
  }
  EXPECT_EQ(policy.decide(at(0), 5).delay, seconds{0});
}

TEST(RestartPolicy, NoRestartsAllowedMeansNone) {
  LauncherOptions none = policy_options();
  none.restarts_max = 0;
  RestartPolicy policy{none, -1};
  EXPECT_EQ(policy.decide(at(0), -1).exit_code, kExitFailed);
}

}  // namespace muster::launcher
