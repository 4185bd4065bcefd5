// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/collector/detect/observations.h"

#include <muster/detect/job_detector.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

namespace muster::detect {

namespace {

using Trace = std::vector<std::tuple<std::int64_t, std::string, std::string>>;

void add_to(Trace& trace, const std::vector<Finding>& findings) {
  for (const Finding& finding : findings) {
    trace.emplace_back(finding.step, finding.rule, finding.subject);
  }
}

// A stream with a NaN, a single spike and a lasting one.
std::vector<StepObservation> eventful_stream(std::uint64_t seed) {
  CleanStream stream{seed};
  std::vector<StepObservation> steps;
  for (std::int64_t step = 0; step < 600; ++step) {
    StepObservation observation = stream.next();
    if (step == 250) {
      observation.loss = kNaN;
    }
    if (step == 300 || (step >= 400 && step < 420)) {
      observation.loss += 2.0;
      observation.gradient_norm *= 10;
    }
    steps.push_back(observation);
  }
  return steps;
}

Trace run(JobDetector detector, const std::vector<StepObservation>& steps) {
  Trace trace;
  for (const StepObservation& step : steps) {
    add_to(trace, detector.observe(step));
  }
  add_to(trace, detector.flush());
  return trace;
}

}  // namespace

TEST(JobDetector, OrderOfArrivalDoesNotChangeTheFindings) {
  constexpr std::uint64_t kSeed = 21;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  const auto steps = eventful_stream(kSeed);
  const Trace expected = run(JobDetector{{}}, steps);
  ASSERT_GE(expected.size(), 5U);
  Random random{kSeed};
  for (int round = 0; round < 20; ++round) {
    auto shuffled = steps;
    // Within blocks of 16, so that no step waits for more than 15; the first step stays first.
    for (std::size_t begin = 1; begin + 16 <= shuffled.size(); begin += 16) {
      for (std::size_t i = 15; i > 0; --i) {
        std::swap(shuffled[begin + i], shuffled[begin + random.below(i + 1)]);
      }
    }
    EXPECT_EQ(run(JobDetector{{}}, shuffled), expected);
  }
}

TEST(JobDetector, DuplicatesChangeNothing) {
  const auto steps = eventful_stream(22);
  std::vector<StepObservation> doubled;
  for (const StepObservation& step : steps) {
    doubled.push_back(step);
    doubled.push_back(step);
  }
  EXPECT_EQ(run(JobDetector{{}}, doubled), run(JobDetector{{}}, steps));
}

TEST(JobDetector, LostStepHoldsJudgingUpForABoundedTime) {
  JobDetectorOptions options;
  options.reorder_steps = 4;
  JobDetector detector{options};
  static_cast<void>(detector.observe(observation_at(0)));
  // Step 1 never comes.
  EXPECT_TRUE(detector.observe(observation_at(2, kNaN)).empty());
  EXPECT_TRUE(detector.observe(observation_at(3)).empty());
  EXPECT_TRUE(detector.observe(observation_at(4)).empty());
  EXPECT_EQ(detector.observe(observation_at(5)).size(), 1U);
  EXPECT_EQ(detector.observe(observation_at(6, kNaN)).size(), 1U);
}

TEST(JobDetector, LateStepIsStillJudgedForNonfiniteValuesOnce) {
  JobDetectorOptions options;
  options.reorder_steps = 2;
  JobDetector detector{options};
  static_cast<void>(detector.observe(observation_at(0)));
  static_cast<void>(detector.observe(observation_at(3)));
  static_cast<void>(detector.observe(observation_at(4)));
  EXPECT_EQ(detector.observe(observation_at(1, kNaN)).size(), 1U);
  EXPECT_TRUE(detector.observe(observation_at(1, kNaN)).empty());
  EXPECT_EQ(detector.observe(observation_at(2, kNaN)).size(), 1U);
  EXPECT_EQ(detector.late_count(), 2U);
  EXPECT_EQ(detector.duplicate_count(), 1U);
}

TEST(JobDetector, SkippedStepsNeverEnterTheWindow) {
  auto steps = eventful_stream(23);
  auto with_skips = std::vector<StepObservation>{};
  std::int64_t step = 0;
  for (const StepObservation& observation : steps) {
    with_skips.push_back(observation);
    with_skips.back().step = step++;
    with_skips.push_back(observation_at(step++, 1e9, 1e9));
    with_skips.back().skipped = true;
  }
  const Trace expected = run(JobDetector{{}}, steps);
  const Trace found = run(JobDetector{{}}, with_skips);
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(std::get<0>(found[i]), 2 * std::get<0>(expected[i]));
    EXPECT_EQ(std::get<1>(found[i]), std::get<1>(expected[i]));
  }
}

TEST(JobDetector, NewGenerationWarmsUpAgainButFindsNonfiniteAtOnce) {
  CleanStream stream{24};
  JobDetector detector{{}};
  for (int i = 0; i < 300; ++i) {
    static_cast<void>(detector.observe(stream.next()));
  }
  StepObservation resumed = observation_at(250, 50.0, 50.0);
  resumed.generation = 2;
  EXPECT_TRUE(detector.observe(resumed).empty());
  resumed.step = 251;
  resumed.loss = kNaN;
  EXPECT_EQ(count_of(detector.observe(resumed), "nonfinite"), 1U);
}

TEST(JobDetector, OlderGenerationIsIgnored) {
  JobDetector detector{{}};
  StepObservation second = observation_at(10);
  second.generation = 2;
  static_cast<void>(detector.observe(second));
  EXPECT_TRUE(detector.observe(observation_at(11, kNaN)).empty());
  EXPECT_EQ(detector.late_count(), 1U);
}

TEST(JobDetector, WaitingStepsOfTheOldGenerationAreJudgedWhenANewOneBegins) {
  JobDetector detector{{}};
  static_cast<void>(detector.observe(observation_at(0)));
  EXPECT_TRUE(detector.observe(observation_at(2, kNaN)).empty());
  StepObservation second = observation_at(1);
  second.generation = 2;
  const auto findings = detector.observe(second);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].step, 2);
}

}  // namespace muster::detect
