// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/collector/detect/observations.h"

#include <muster/detect/nonfinite_detector.h>

#include <gtest/gtest.h>

namespace muster::detect {

TEST(NonfiniteDetector, FirstStepIsJudgedAtOnce) {
  NonfiniteDetector detector;
  const auto findings = detector.observe(observation_at(0, kNaN));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].rule, "nonfinite");
  EXPECT_EQ(findings[0].subject, "loss");
  EXPECT_EQ(findings[0].step, 0);
}

TEST(NonfiniteDetector, EveryKindIsFoundAndNamed) {
  EXPECT_EQ(find_nonfinite(observation_at(1, -kInfinity))[0].subject, "loss");
  EXPECT_EQ(find_nonfinite(observation_at(1, 2.0, kInfinity))[0].subject, "gradient");
  StepObservation counted = observation_at(1);
  counted.nonfinite_count = 3;
  EXPECT_EQ(find_nonfinite(counted)[0].inputs.at("nonfinite_count"), 3.0);
  counted.nonfinite_count = kNaN;
  EXPECT_EQ(find_nonfinite(counted)[0].subject, "gradient");
  StepObservation logit = observation_at(1);
  logit.max_logit = kInfinity;
  logit.max_logit_layer = 2;
  logit.max_logit_head = 7;
  EXPECT_EQ(find_nonfinite(logit)[0].subject, "layer 2 head 7");
}

TEST(NonfiniteDetector, StepWithoutLogitsIsWell) {
  EXPECT_TRUE(find_nonfinite(observation_at(1)).empty());
}

TEST(NonfiniteDetector, LongStreakLeavesATrailOfPowersOfTwo) {
  NonfiniteDetector detector;
  std::vector<std::int64_t> steps;
  for (std::int64_t step = 1; step <= 100; ++step) {
    for (const Finding& finding : detector.observe(observation_at(step, kNaN))) {
      steps.push_back(finding.step);
    }
  }
  EXPECT_EQ(steps, (std::vector<std::int64_t>{1, 2, 4, 8, 16, 32, 64}));
}

TEST(NonfiniteDetector, GoodStepEndsTheStreak) {
  NonfiniteDetector detector;
  for (std::int64_t step = 0; step < 3; ++step) {
    static_cast<void>(detector.observe(observation_at(step, kNaN)));
  }
  EXPECT_TRUE(detector.observe(observation_at(3)).empty());
  EXPECT_EQ(detector.observe(observation_at(4, kNaN)).size(), 1U);
}

}  // namespace muster::detect
