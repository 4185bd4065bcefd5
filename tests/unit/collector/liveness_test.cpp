// SPDX-License-Identifier: Apache-2.0
#include "collector/src/liveness.h"

#include "tests/unit/collector/scripted_client.h"

#include <muster/common/clock.h>

#include <gtest/gtest.h>

#include <chrono>

namespace muster::collector {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class LivenessOfRanks : public ::testing::Test {
 protected:
  void join(std::int32_t rank, std::int64_t generation = 1) {
    liveness_.opened(agent_hello(rank, generation), clock_.now());
  }

  void hear(std::int32_t rank, std::int64_t step, std::int64_t generation = 1) {
    liveness_.heard(agent_hello(rank, generation), step, clock_.now());
  }

  void drop(std::int32_t rank, bool goodbye = false, std::int64_t generation = 1) {
    liveness_.closed(agent_hello(rank, generation), goodbye, clock_.now());
  }

  // Time passes in which `rank` goes on.
  void pass(std::chrono::nanoseconds time, std::int32_t rank) {
    clock_.advance(time);
    hear(rank, -1);
  }

  std::vector<LivenessFinding> judge() { return liveness_.judge(clock_.now()); }

  ManualClock clock_;
  Liveness liveness_{seconds{1}};
};

TEST_F(LivenessOfRanks, NamesARankThatLeftWithoutAWordWhileOthersGoOn) {
  join(0);
  join(2);
  hear(2, 41);
  clock_.advance(milliseconds{10});
  drop(2);
  pass(milliseconds{999}, 0);
  EXPECT_TRUE(judge().empty());
  pass(milliseconds{1}, 0);
  const auto findings = judge();
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].run_id, "run-1");
  EXPECT_EQ(findings[0].finding.rule, "rank_lost");
  EXPECT_EQ(findings[0].finding.subject, "rank 2");
  EXPECT_EQ(findings[0].finding.step, 41);
  EXPECT_DOUBLE_EQ(findings[0].finding.inputs.at("silent_seconds"), 1.0);
}

TEST_F(LivenessOfRanks, SaysItOnce) {
  join(0);
  join(2);
  drop(2);
  pass(seconds{2}, 0);
  EXPECT_EQ(judge().size(), 1U);
  pass(seconds{2}, 0);
  EXPECT_TRUE(judge().empty());
}

TEST_F(LivenessOfRanks, LetsARankComeBackInTime) {
  join(0);
  join(2);
  drop(2);
  clock_.advance(milliseconds{500});
  join(2);
  pass(seconds{5}, 0);
  EXPECT_TRUE(judge().empty());
}

TEST_F(LivenessOfRanks, LetsARankGoThatSaidGoodbye) {
  join(0);
  join(2);
  drop(2, true);
  pass(seconds{5}, 0);
  EXPECT_TRUE(judge().empty());
}

TEST_F(LivenessOfRanks, BlamesNobodyWhenAllFallSilentAtOnce) {
  join(0);
  join(1);
  drop(0);
  drop(1);
  clock_.advance(seconds{60});
  EXPECT_TRUE(judge().empty());
}

TEST_F(LivenessOfRanks, TakesTheLauncherAsASignOfLife) {
  join(0);
  liveness_.opened(launcher_hello(), clock_.now());
  drop(0);
  clock_.advance(seconds{2});
  liveness_.heard(launcher_hello(), -1, clock_.now());
  EXPECT_EQ(judge().size(), 1U);
}

TEST_F(LivenessOfRanks, BlamesOnlyRanksThatWereGoneBeforeTheLauncherDismissedTheRest) {
  join(0);
  join(1);
  join(2);
  drop(2);
  clock_.advance(milliseconds{100});
  liveness_.opened(launcher_hello(), clock_.now());
  liveness_.dismissed("run-1");
  drop(0);
  drop(1);
  clock_.advance(seconds{2});
  liveness_.heard(launcher_hello(), -1, clock_.now());
  const auto findings = judge();
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].finding.subject, "rank 2");
}

TEST_F(LivenessOfRanks, ForgetsTheLossesOfAnOlderGeneration) {
  join(0, 1);
  join(1, 1);
  drop(1, false, 1);
  join(0, 2);
  clock_.advance(seconds{5});
  hear(0, 1, 2);
  EXPECT_TRUE(judge().empty());
  drop(1, false, 1);
  clock_.advance(seconds{5});
  hear(0, 1, 2);
  EXPECT_TRUE(judge().empty());
}

TEST_F(LivenessOfRanks, SaysThatAJobStandsStill) {
  join(0);
  hear(0, 5);
  for (int i = 0; i < 120; ++i) {
    clock_.advance(seconds{1});
    hear(0, 5);
  }
  const auto findings = judge();
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].finding.rule, "no_progress");
}

TEST_F(LivenessOfRanks, IgnoresOperators) {
  liveness_.opened(operator_hello(), clock_.now());
  liveness_.heard(operator_hello(), -1, clock_.now());
  liveness_.closed(operator_hello(), false, clock_.now());
  EXPECT_TRUE(judge().empty());
}

}  // namespace
}  // namespace muster::collector
