// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/collector/detect/observations.h"

#include <muster/common/random.h>
#include <muster/detect/flat_detector.h>
#include <muster/detect/job_detector.h>

#include <gtest/gtest.h>

namespace muster::detect {

TEST(FlatDetector, ALossThatFallsToZeroIsFoundWithinTenSteps) {
  JobDetector detector{{}};
  Random noise{7};
  std::vector<Finding> found;
  for (std::int64_t step = 0; step < 600; ++step) {
    const bool dead = step >= 500;
    const double loss = dead ? 0.0 : 2.5 + 0.02 * noise.uniform();
    const double norm = dead ? 0.0 : 1.0 + 0.05 * noise.uniform();
    for (Finding& finding : detector.observe(observation_at(step, loss, norm))) {
      found.push_back(std::move(finding));
    }
  }
  ASSERT_GE(found.size(), 2U);
  EXPECT_EQ(found[0].rule, "flat");
  EXPECT_EQ(found[0].subject, "loss");
  EXPECT_EQ(found[0].step, 509);
  EXPECT_EQ(found[1].subject, "gradient_norm");
  EXPECT_EQ(found.back().step, 579) << "found again at 20, 40 and 80 steps";
}

TEST(FlatDetector, TheSameLossForTwoHundredStepsIsFound) {
  FlatDetector detector{{}};
  std::vector<std::int64_t> steps;
  for (std::int64_t step = 0; step < 1000; ++step) {
    const double norm = 1.0 + static_cast<double>(step) * 1e-3;
    for (const Finding& finding : detector.observe(observation_at(step, 2.25, norm))) {
      EXPECT_EQ(finding.subject, "loss");
      steps.push_back(step);
    }
  }
  EXPECT_EQ(steps, (std::vector<std::int64_t>{199, 399, 799}));
}

TEST(FlatDetector, AnotherValueOrNoValueEndsTheStreak) {
  FlatDetector detector{{}};
  for (std::int64_t step = 0; step < 100; ++step) {
    const double loss = step % 9 == 0 ? 1.0 : 0.0;
    const double norm = step % 9 == 4 ? kNaN : 0.0;
    EXPECT_TRUE(detector.observe(observation_at(step, loss, norm)).empty()) << step;
  }
}

}  // namespace muster::detect
