// SPDX-License-Identifier: Apache-2.0
// A switch of attention modes changes the measure that loss, gradient norm and logits are judged
// by.
#include "tests/unit/collector/detect/observations.h"

#include <muster/detect/job_detector.h>

#include <gtest/gtest.h>

#include <algorithm>

namespace muster::detect {

namespace {

const std::vector<double> kFull{0, 0};
const std::vector<double> kBlock{1, 0};

// Feeds a run that lies `loss_offset` higher and whose norm is `norm_factor` times the clean one.
class Training {
 public:
  explicit Training(std::uint64_t seed) : stream_(seed) {}

  std::vector<Finding> steps(
      int count, const std::vector<double>& modes, double loss_offset = 0, double norm_factor = 1) {
    std::vector<Finding> found;
    for (int i = 0; i < count; ++i) {
      StepObservation observation = in_modes(stream_.next(), modes);
      observation.loss += loss_offset;
      observation.gradient_norm *= norm_factor;
      step_ = observation.step + 1;
      for (Finding& finding : detector.observe(observation)) {
        found.push_back(std::move(finding));
      }
    }
    return found;
  }

  [[nodiscard]] ModeChange change(const char* from, const char* to, int layer = 0) const {
    return {1, step_, layer, from, to};
  }

  JobDetector detector{{}};

 private:
  CleanStream stream_;
  std::int64_t step_{0};
};

StepObservation logit_at(std::int64_t step, double value, const std::vector<double>& modes) {
  StepObservation observation = in_modes(observation_at(step), modes);
  observation.head_logits = {{0, 1, value}};
  return observation;
}

}  // namespace

TEST(AttentionModes, AJumpWithoutASwitchAlarms) {
  Training run{31};
  EXPECT_TRUE(run.steps(300, kFull).empty());
  const auto findings = run.steps(100, kFull, 1.0, 5.0);
  EXPECT_EQ(count_of(findings, "spike_persistent"), 2U);
  EXPECT_EQ(run.detector.switch_count(), 0U);
}

TEST(AttentionModes, TheSameJumpWithASwitchDoesNot) {
  Training run{31};
  EXPECT_TRUE(run.steps(300, kFull).empty());
  EXPECT_TRUE(run.steps(100, kBlock, 1.0, 5.0).empty());
  EXPECT_EQ(run.detector.switch_count(), 1U);
}

TEST(AttentionModes, ANewModeAlarmsAboveItsOwnLevelOnceItHasWarmedUp) {
  Training run{32};
  EXPECT_TRUE(run.steps(300, kFull).empty());
  EXPECT_TRUE(run.steps(200, kBlock, 1.0, 5.0).empty());
  const auto findings = run.steps(4, kBlock, 2.0, 25.0);
  EXPECT_EQ(count_of(findings, "spike_persistent"), 2U);
}

TEST(AttentionModes, SwitchingBackFindsTheOldBaselineAgain) {
  Training run{33};
  EXPECT_TRUE(run.steps(300, kFull).empty());
  EXPECT_TRUE(run.steps(200, kBlock, 1.0, 5.0).empty());
  // Were the windows empty, nothing could be found for 64 steps; were they those of block
  // attention, this level would be usual.
  const auto findings = run.steps(4, kFull, 1.0, 5.0);
  EXPECT_EQ(count_of(findings, "spike_persistent"), 2U);
  EXPECT_EQ(run.detector.switch_count(), 2U);
}

TEST(AttentionModes, WhatIsOpenWhenAModeEndsIsFoundAgainWhenItComesBackHigh) {
  Training run{34};
  EXPECT_TRUE(run.steps(300, kFull).empty());
  EXPECT_EQ(count_of(run.steps(5, kFull, 1.0, 5.0), "spike_persistent"), 2U);
  EXPECT_TRUE(run.steps(100, kBlock, 1.0, 5.0).empty());
  EXPECT_EQ(count_of(run.steps(5, kFull, 1.0, 5.0), "spike_persistent"), 2U);
}

TEST(AttentionModes, WhatIsOpenWhenAModeEndsIsOverWhenItComesBackNormal) {
  Training run{35};
  EXPECT_TRUE(run.steps(300, kFull).empty());
  EXPECT_EQ(count_of(run.steps(5, kFull, 1.0, 5.0), "spike_persistent"), 2U);
  EXPECT_TRUE(run.steps(100, kBlock, 1.0, 5.0).empty());
  EXPECT_TRUE(run.steps(50, kFull).empty());
  // One high step is a new spike, not the rest of the old episode.
  EXPECT_EQ(count_of(run.steps(1, kFull, 1.0, 5.0), "spike"), 2U);
}

TEST(AttentionModes, EveryEventIsOneSwitchHoweverOftenItComes) {
  Training run{36};
  static_cast<void>(run.steps(100, {0, 0, 0}));
  const auto events = {run.change("full", "moba:512,3", 0), run.change("full", "moba:512,3", 2)};
  for (int round = 0; round < 3; ++round) {
    for (const ModeChange& event : events) {
      run.detector.note(event);
    }
    static_cast<void>(run.steps(10, {1, 0, 1}));
  }
  EXPECT_EQ(run.detector.switch_count(), 2U);
}

TEST(AttentionModes, OtherBlocksAreAnotherMode) {
  Training run{37};
  EXPECT_TRUE(run.steps(300, kBlock).empty());
  run.detector.note(run.change("moba:512,3", "moba:128,8"));
  EXPECT_TRUE(run.steps(100, kBlock, 1.0, 5.0).empty());
  EXPECT_EQ(run.detector.switch_count(), 1U);
  run.detector.note(run.change("moba:128,8", "moba:512,3"));
  EXPECT_EQ(count_of(run.steps(5, kBlock, 1.0, 5.0), "spike_persistent"), 2U);
  EXPECT_EQ(run.detector.switch_count(), 2U);
}

TEST(AttentionModes, AnEventAloneNeverMovesAStepToTheOtherKind) {
  Training run{38};
  EXPECT_TRUE(run.steps(300, kFull).empty());
  run.detector.note(run.change("full", "moba:512,3"));
  EXPECT_EQ(count_of(run.steps(5, kFull, 1.0, 5.0), "spike_persistent"), 2U);
  EXPECT_EQ(run.detector.switch_count(), 0U);
}

TEST(AttentionModes, ALostEventCostsNothingWhenFullGivesWayToBlocks) {
  Training run{39};
  EXPECT_TRUE(run.steps(300, kFull).empty());
  EXPECT_TRUE(run.steps(100, kBlock, 1.0, 5.0).empty());
  EXPECT_EQ(count_of(run.steps(5, kFull, 1.0, 5.0), "spike_persistent"), 2U);
}

TEST(AttentionModes, OrderOfArrivalDoesNotChangeTheSwitches) {
  JobDetector ordered{{}};
  JobDetector shuffled{{}};
  std::vector<StepObservation> steps;
  CleanStream stream{40};
  for (std::int64_t step = 0; step < 401; ++step) {
    steps.push_back(in_modes(stream.next(), step / 50 % 2 == 0 ? kFull : kBlock));
  }
  for (const StepObservation& step : steps) {
    static_cast<void>(ordered.observe(step));
  }
  for (std::size_t begin = 1; begin + 8 <= steps.size(); begin += 8) {
    const auto first = steps.begin() + static_cast<std::ptrdiff_t>(begin);
    std::reverse(first, first + 8);
  }
  for (const StepObservation& step : steps) {
    static_cast<void>(shuffled.observe(step));
  }
  EXPECT_EQ(ordered.switch_count(), 8U);
  EXPECT_EQ(shuffled.switch_count(), 8U);
}

TEST(AttentionModes, TheBaselineLongestOutOfUseGivesWay) {
  JobDetectorOptions options;
  options.baselines_max = 2;
  JobDetector detector{options};
  CleanStream stream{41};
  const auto feed = [&](int count, const std::vector<double>& modes, double offset) {
    std::size_t alarms = 0;
    for (int i = 0; i < count; ++i) {
      StepObservation observation = in_modes(stream.next(), modes);
      observation.loss += offset;
      alarms += count_of(detector.observe(observation), "spike_persistent");
    }
    return alarms;
  };
  EXPECT_EQ(feed(200, {0, 0}, 0), 0U);
  EXPECT_EQ(feed(200, {1, 0}, 0), 0U);
  EXPECT_EQ(feed(1, {0, 0}, 0), 0U);
  EXPECT_EQ(feed(1, {1, 1}, 0), 0U);    // {1, 0} goes.
  EXPECT_EQ(feed(5, {0, 0}, 1.0), 1U);  // {0, 0} is still there.
  EXPECT_EQ(feed(5, {1, 0}, 1.0), 0U);
}

TEST(AttentionModes, ANewLaunchStartsWithoutTheModesOfTheOldOne) {
  Training run{42};
  EXPECT_TRUE(run.steps(300, kFull).empty());
  StepObservation resumed = in_modes(observation_at(250, 50.0, 50.0), kFull);
  resumed.generation = 2;
  EXPECT_TRUE(run.detector.observe(resumed).empty());
  EXPECT_EQ(run.detector.switch_count(), 0U);
}

TEST(AttentionModes, AHeadAboveTauIsRememberedPerMode) {
  JobDetector detector{{}};
  EXPECT_EQ(detector.observe(logit_at(0, 130, {0})).size(), 1U);
  EXPECT_EQ(detector.observe(logit_at(1, 20, {1})).size(), 0U);
  // The same head in full attention never came back below tau.
  EXPECT_EQ(detector.observe(logit_at(2, 130, {0})).size(), 0U);
  EXPECT_EQ(detector.observe(logit_at(3, 130, {1})).size(), 1U);
  // Without a switch the low value arms it again.
  EXPECT_EQ(detector.observe(logit_at(4, 20, {0})).size(), 0U);
  EXPECT_EQ(detector.observe(logit_at(5, 130, {0})).size(), 1U);
}

}  // namespace muster::detect
