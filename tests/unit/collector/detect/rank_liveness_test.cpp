// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/collector/detect/observations.h"

#include <muster/detect/rank_liveness.h>

#include <gtest/gtest.h>

#include <chrono>

namespace muster::detect {

namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

MonotonicTime at(std::chrono::nanoseconds since_start) {
  return MonotonicTime{since_start};
}

// Two ranks, one message and one step each second.
void run_for(RankLiveness& liveness, int count) {
  for (int i = 0; i < count; ++i) {
    liveness.observe(1, 0, i, at(seconds{i}));
    liveness.observe(1, 1, i, at(seconds{i}));
  }
}

}  // namespace

TEST(RankLiveness, SilentRankIsFoundOnce) {
  RankLiveness liveness{{}};
  run_for(liveness, 30);
  for (int i = 30; i < 40; ++i) {
    liveness.observe(1, 0, i, at(seconds{i}));
  }
  EXPECT_TRUE(liveness.judge(at(seconds{39})).empty());
  const auto findings = liveness.judge(at(seconds{39} + milliseconds{1}));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].rule, "rank_lost");
  EXPECT_EQ(findings[0].subject, "rank 1");
  EXPECT_EQ(findings[0].step, 29);
  EXPECT_GT(findings[0].inputs.at("silence_seconds"), 10.0);
  EXPECT_TRUE(liveness.judge(at(seconds{45})).empty());
}

TEST(RankLiveness, SlowTalkerIsAllowedLongerSilences) {
  RankLiveness liveness{{}};
  for (int i = 0; i < 10; ++i) {
    liveness.observe(1, 0, i, at(seconds{8 * i}));
  }
  EXPECT_TRUE(liveness.judge(at(seconds{72 + 31})).empty());
  EXPECT_EQ(liveness.judge(at(seconds{72 + 33})).size(), 1U);
}

TEST(RankLiveness, RankThatComesBackCanBeLostAgain) {
  RankLiveness liveness{{}};
  liveness.observe(1, 0, 5, at(seconds{0}));
  EXPECT_EQ(liveness.judge(at(seconds{20})).size(), 1U);
  liveness.observe(1, 0, 6, at(seconds{21}));
  EXPECT_TRUE(liveness.judge(at(seconds{22})).empty());
  EXPECT_EQ(liveness.judge(at(seconds{40})).size(), 1U);
}

TEST(RankLiveness, GoodbyeIsNoLoss) {
  RankLiveness liveness{{}};
  run_for(liveness, 5);
  liveness.forget(1, 0);
  liveness.forget(1, 1);
  EXPECT_TRUE(liveness.judge(at(seconds{1000})).empty());
}

TEST(RankLiveness, NewGenerationForgetsTheRanksOfTheOldOne) {
  RankLiveness liveness{{}};
  run_for(liveness, 5);
  liveness.observe(2, 0, 3, at(seconds{100}));
  liveness.observe(1, 1, 6, at(seconds{100}));
  EXPECT_TRUE(liveness.judge(at(seconds{105})).empty());
  EXPECT_EQ(liveness.judge(at(seconds{111})).size(), 1U);
}

TEST(RankLiveness, HeartbeatsWithoutStepsAreAStallThatNamesWhoIsBehind) {
  RankLiveness liveness{{}};
  run_for(liveness, 30);
  liveness.observe(1, 0, 30, at(seconds{30}));
  std::vector<Finding> findings;
  for (int i = 31; i < 120; ++i) {
    liveness.observe(1, 0, 30, at(seconds{i}));
    liveness.observe(1, 1, 29, at(seconds{i}));
    for (Finding& finding : liveness.judge(at(seconds{i}))) {
      findings.push_back(std::move(finding));
    }
  }
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].rule, "no_progress");
  EXPECT_EQ(findings[0].step, 30);
  EXPECT_NE(findings[0].reason.find("behind: rank 1"), std::string::npos);
  EXPECT_NEAR(findings[0].inputs.at("stall_seconds"), 61.0, 1.0);
}

TEST(RankLiveness, LongStepsAreNoStall) {
  RankLiveness liveness{{}};
  for (int i = 0; i < 1000; ++i) {
    liveness.observe(1, 0, i / 50, at(seconds{i}));
  }
  // Steps take 50 s here, so 150 s without one are usual.
  for (int i = 1000; i < 1090; ++i) {
    liveness.observe(1, 0, 19, at(seconds{i}));
    EXPECT_TRUE(liveness.judge(at(seconds{i})).empty());
  }
}

TEST(RankLiveness, TheStepAfterTheFirstOneTellsHowLongStepsAre) {
  RankLiveness liveness{{}};
  for (int i = 0; i < 150; ++i) {
    liveness.observe(1, 0, i / 100, at(seconds{i}));  // Step 1 comes 100 s after step 0.
  }
  for (int i = 150; i < 250; ++i) {
    liveness.observe(1, 0, 1, at(seconds{i}));
    EXPECT_TRUE(liveness.judge(at(seconds{i})).empty()) << i;
  }
}

TEST(RankLiveness, StartUpIsNoStall) {
  RankLiveness liveness{{}};
  for (int i = 0; i < 600; ++i) {
    liveness.observe(1, 0, -1, at(seconds{i}));
    EXPECT_TRUE(liveness.judge(at(seconds{i})).empty());
  }
}

}  // namespace muster::detect
