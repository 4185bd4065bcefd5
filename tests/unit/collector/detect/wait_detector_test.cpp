// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/collector/detect/observations.h"

#include <muster/detect/wait_detector.h>

#include <gtest/gtest.h>

#include <utility>

namespace muster::detect {

namespace {

constexpr int kRanks = 4;

// Rank `i` of four waits 2 ms +- 0.2 for every other, and `extra` more for rank 2.
class Group {
 public:
  explicit Group(std::uint64_t seed) : random_(seed) {}

  WaitRow row(std::int64_t step, std::int32_t rank, double extra) {
    WaitRow row{1, step, rank, std::vector<double>(kRanks, 0.0)};
    for (int peer = 0; peer < kRanks; ++peer) {
      if (peer != rank) {
        row.seconds[static_cast<std::size_t>(peer)] =
            2e-3 + 2e-4 * random_.normal() + (peer == 2 ? extra : 0);
      }
    }
    return row;
  }

  std::vector<Finding> steps(WaitDetector& detector, int count, double extra) {
    std::vector<Finding> found;
    for (int i = 0; i < count; ++i, ++step_) {
      for (std::int32_t rank = 0; rank < kRanks; ++rank) {
        add(found, detector.observe(row(step_, rank, extra)));
      }
    }
    return found;
  }

  static void add(std::vector<Finding>& to, std::vector<Finding> from) {
    for (Finding& finding : from) {
      to.push_back(std::move(finding));
    }
  }

 private:
  Random random_;
  std::int64_t step_{0};
};

}  // namespace

TEST(WaitDetector, NamesTheRankWhoseColumnIsHeavy) {
  Group group{61};
  WaitDetector detector{{}};
  EXPECT_TRUE(group.steps(detector, 100, 0).empty());
  EXPECT_TRUE(group.steps(detector, 31, 4e-3).empty());
  const auto findings = group.steps(detector, 100, 4e-3);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].rule, "ep_rank_waited_for");
  EXPECT_EQ(findings[0].subject, "EP rank 2");
  EXPECT_EQ(findings[0].step, 131);
  EXPECT_NEAR(findings[0].inputs.at("wait_seconds"), 3 * 6e-3, 2e-3);
  EXPECT_NEAR(findings[0].inputs.at("others_median_seconds"), 3 * 2e-3, 1e-3);
  EXPECT_NE(findings[0].reason.find("EP rank 2 is waited for"), std::string::npos);
}

TEST(WaitDetector, IsQuietWhenAllWaitAlike) {
  constexpr std::uint64_t kSeed = 62;
  Group group{kSeed};
  WaitDetector detector{{}};
  EXPECT_TRUE(group.steps(detector, 20'000, 0).empty()) << "seed " << kSeed;
}

TEST(WaitDetector, TwoRanksAreJudgedAgainstEachOther) {
  WaitDetector detector{{.steps = 4}};
  std::vector<Finding> found;
  for (std::int64_t step = 0; step < 20; ++step) {
    // Half a millisecond more is below what two idle ranks differ by; five are not.
    const double slow = step < 10 ? 2.5e-3 : 7e-3;
    Group::add(found, detector.observe({1, step, 0, {0.0, slow}}));
    Group::add(found, detector.observe({1, step, 1, {2e-3, 0.0}}));
  }
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].subject, "EP rank 1");
  EXPECT_EQ(found[0].step, 13);
}

TEST(WaitDetector, RowsOfOneStepMayComeFarApart) {
  Group group{63};
  WaitDetector detector{{}};
  std::vector<Finding> found;
  for (std::int32_t rank = 0; rank < kRanks; ++rank) {
    for (std::int64_t step = 0; step < 60; ++step) {
      Group::add(found, detector.observe(group.row(step, rank, 4e-3)));
    }
  }
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].step, 31);
}

TEST(WaitDetector, RowsThatComeAgainCountOnce) {
  Group group{64};
  WaitDetector detector{{}};
  std::vector<Finding> found;
  for (std::int64_t step = 0; step < 31; ++step) {
    for (std::int32_t rank = 0; rank < kRanks; ++rank) {
      const WaitRow row = group.row(step, rank, 4e-3);
      Group::add(found, detector.observe(row));
      Group::add(found, detector.observe(row));
    }
  }
  EXPECT_TRUE(found.empty());
}

TEST(WaitDetector, StepsThatMissARowArePassedOver) {
  Group group{65};
  WaitDetector detector{{.steps = 4, .reorder_steps = 8}};
  EXPECT_TRUE(group.steps(detector, 2, 0).empty());
  std::vector<Finding> found;
  for (std::int64_t step = 2; step < 100; ++step) {
    for (std::int32_t rank = 0; rank < kRanks - 1; ++rank) {  // Rank 3 is silent.
      Group::add(found, detector.observe(group.row(step, rank, 9e-3)));
    }
  }
  EXPECT_TRUE(found.empty());
}

TEST(WaitDetector, ANewLaunchStartsAfreshAndTheOldOneIsOver) {
  Group group{66};
  WaitDetector detector{{.steps = 8}};
  EXPECT_EQ(group.steps(detector, 20, 4e-3).size(), 1U);
  WaitRow first = group.row(0, 0, 4e-3);
  first.generation = 2;
  EXPECT_TRUE(detector.observe(first).empty());
  EXPECT_TRUE(group.steps(detector, 20, 4e-3).empty());
}

TEST(WaitDetector, RowsOfAnotherWidthOrWithoutEndAreIgnored) {
  Group group{67};
  WaitDetector detector{{.steps = 8}};
  EXPECT_TRUE(group.steps(detector, 4, 0).empty());
  EXPECT_TRUE(detector.observe({1, 4, 0, {1.0, 2.0}}).empty());
  EXPECT_TRUE(detector.observe({1, 4, 0, {}}).empty());
  // A NaN somewhere leaves the step out and the count as it was.
  std::vector<Finding> found = group.steps(detector, 7, 4e-3);
  for (std::int32_t rank = 0; rank < kRanks; ++rank) {
    WaitRow row = group.row(11, rank, 4e-3);
    row.seconds[0] = kNaN;
    Group::add(found, detector.observe(row));
  }
  EXPECT_TRUE(found.empty());
  for (std::int32_t rank = 0; rank < kRanks; ++rank) {
    Group::add(found, detector.observe(group.row(12, rank, 4e-3)));
  }
  EXPECT_EQ(found.size(), 1U);
}

}  // namespace muster::detect
