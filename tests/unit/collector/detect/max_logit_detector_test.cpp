// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/collector/detect/observations.h"

#include <muster/detect/max_logit_detector.h>

#include <gtest/gtest.h>

namespace muster::detect {

namespace {

StepObservation logits_at(std::int64_t step, std::vector<HeadLogit> heads) {
  StepObservation observation = observation_at(step);
  observation.head_logits = std::move(heads);
  return observation;
}

StepObservation largest_at(std::int64_t step, int head, double value) {
  StepObservation observation = observation_at(step);
  observation.max_logit = value;
  observation.max_logit_layer = 0;
  observation.max_logit_head = head;
  return observation;
}

}  // namespace

TEST(MaxLogitDetector, EveryHeadIsFoundOncePerCrossing) {
  MaxLogitDetector detector{{.tau = 100}};
  EXPECT_TRUE(detector.observe(logits_at(0, {{0, 0, 100.0}, {1, 2, 50.0}})).empty());
  const auto findings = detector.observe(logits_at(1, {{0, 0, 101.0}, {1, 2, 150.0}}));
  ASSERT_EQ(findings.size(), 2U);
  EXPECT_EQ(findings[0].rule, "max_logit");
  EXPECT_EQ(findings[0].step, 1);
  EXPECT_EQ(findings[1].subject, "layer 1 head 2");
  EXPECT_EQ(findings[1].inputs.at("value"), 150.0);
  EXPECT_EQ(findings[1].inputs.at("tau"), 100.0);
  EXPECT_TRUE(detector.observe(logits_at(2, {{0, 0, 120.0}, {1, 2, 160.0}})).empty());
}

TEST(MaxLogitDetector, HeadNearTauIsNotFoundAgainAndAgain) {
  MaxLogitDetector detector{{.tau = 100, .rearm_ratio = 0.9}};
  std::size_t found = 0;
  for (std::int64_t step = 0; step < 50; ++step) {
    found += detector.observe(logits_at(step, {{0, 0, step % 2 == 0 ? 99.0 : 101.0}})).size();
  }
  EXPECT_EQ(found, 1U);
  EXPECT_TRUE(detector.observe(logits_at(50, {{0, 0, 89.0}})).empty());
  EXPECT_EQ(detector.observe(logits_at(51, {{0, 0, 101.0}})).size(), 1U);
}

TEST(MaxLogitDetector, LargestAloneIsJudgedWhenHeadsAreNotKnown) {
  MaxLogitDetector detector{{.tau = 100}};
  EXPECT_EQ(detector.observe(largest_at(0, 3, 130.0)).size(), 1U);
  EXPECT_TRUE(detector.observe(largest_at(1, 3, 140.0)).empty());
  EXPECT_EQ(detector.observe(largest_at(2, 1, 150.0)).size(), 1U);
  EXPECT_TRUE(detector.observe(largest_at(3, 0, 20.0)).empty());
  EXPECT_EQ(detector.observe(largest_at(4, 3, 130.0)).size(), 1U);
}

TEST(MaxLogitDetector, LogitsThatAreNotFiniteAreLeftToAnotherRule) {
  MaxLogitDetector detector{{.tau = 100}};
  EXPECT_TRUE(detector.observe(logits_at(0, {{0, 0, kNaN}, {0, 1, kInfinity}})).empty());
  EXPECT_TRUE(detector.observe(largest_at(1, 0, kNaN)).empty());
}

}  // namespace muster::detect
