// SPDX-License-Identifier: Apache-2.0
// Operating points: how often clean streams alarm, how soon known divergences do. The shapes are
// those of published loss and gradient norm traces; docs/concepts/detectors.md has the budget.
#include "tests/unit/collector/detect/observations.h"

#include <muster/detect/job_detector.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

namespace muster::detect {

namespace {

struct Shape {
  std::vector<double> loss_ratio;  // Over the loss before.
  std::vector<double> norm_ratio;  // Over the norm before.
};

// BLOOM-176B, step 31216: the norm climbs for four steps before the loss follows. The published
// norms are 0.242, 0.947, 2.39, 15.9, 145, 960; the loss stays below 2.6 until it is 5.10.
const Shape kBloom176{
    .loss_ratio = {1.0, 1.01, 1.05, 1.2, 2.36},
    .norm_ratio = {0.947 / 0.242, 2.39 / 0.242, 15.9 / 0.242, 145 / 0.242, 960 / 0.242}};

// BLOOM-104B: the norm is 20 times the usual while the loss goes from 3.06 to 3.11; then 7.71.
const Shape kBloom104{
    .loss_ratio = {3.11 / 3.06, 7.71 / 3.06, 7.0 / 3.06, 6.5 / 3.06},
    .norm_ratio = {20.0, 40.0, 20.0, 10.0}};

// Steps from the first abnormal one to the first alarm on `subject`; -1: none.
std::int64_t latency(const Shape& shape, const std::string& subject, std::uint64_t seed) {
  CleanStream stream{seed};
  JobDetector detector{{}};
  const std::int64_t onset = 400 + static_cast<std::int64_t>(seed % 100);
  for (std::int64_t step = 0; step < onset; ++step) {
    static_cast<void>(detector.observe(stream.next()));
  }
  for (std::size_t i = 0; i < shape.loss_ratio.size(); ++i) {
    StepObservation observation = stream.next();
    observation.loss *= shape.loss_ratio[i];
    observation.gradient_norm *= shape.norm_ratio[i];
    for (const Finding& finding : detector.observe(observation)) {
      if (finding.rule == "spike_persistent" && finding.subject == subject) {
        return finding.step - onset;
      }
    }
  }
  return -1;
}

}  // namespace

TEST(Simulation, CleanStreamStaysWithinTheFalseAlarmBudget) {
  constexpr std::uint64_t kSeed = 2024;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  CleanStream stream{kSeed};
  JobDetector detector{{}};
  std::size_t alarms = 0;
  std::size_t marks = 0;
  std::size_t others = 0;
  for (int step = 0; step < 100'000; ++step) {
    const auto findings = detector.observe(stream.next());
    alarms += count_of(findings, "spike_persistent");
    marks += count_of(findings, "spike");
    others +=
        findings.size() - count_of(findings, "spike") - count_of(findings, "spike_persistent");
  }
  // Budget per 100,000 steps of Gaussian noise: 0 alarms on loss, 0.2 on the norm. Single steps are
  // marks on a chart only.
  EXPECT_LE(alarms, 1U);
  EXPECT_LE(marks, 10U);
  EXPECT_EQ(others, 0U);
}

TEST(Simulation, Bloom176ShapeIsAlarmedByItsNormBeforeTheLossPeaks) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const std::int64_t found = latency(kBloom176, "gradient_norm", seed);
    EXPECT_GE(found, 0);
    EXPECT_LE(found, 1);
  }
}

TEST(Simulation, Bloom104ShapeIsAlarmedByNormAndLoss) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    EXPECT_EQ(latency(kBloom104, "gradient_norm", seed), 1);
    const std::int64_t by_loss = latency(kBloom104, "loss", seed);
    EXPECT_GE(by_loss, 1);
    EXPECT_LE(by_loss, 2);
  }
}

TEST(Simulation, BenignBlipsOfTheNormAreMarkedButNotAlarmed) {
  constexpr std::uint64_t kSeed = 7;
  CleanStream stream{kSeed};
  JobDetector detector{{}};
  std::size_t alarms = 0;
  std::size_t marks = 0;
  for (int step = 0; step < 20'000; ++step) {
    StepObservation observation = stream.next();
    if (step % 500 == 499) {
      observation.gradient_norm *= 6;
    }
    const auto findings = detector.observe(observation);
    alarms += count_of(findings, "spike_persistent");
    marks += count_of(findings, "spike");
  }
  EXPECT_EQ(alarms, 0U);
  EXPECT_GE(marks, 39U);
}

}  // namespace muster::detect
