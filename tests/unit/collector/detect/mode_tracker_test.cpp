// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/collector/detect/observations.h"

#include <muster/detect/mode_tracker.h>

#include <gtest/gtest.h>

namespace muster::detect {

namespace {

StepObservation step_in(std::int64_t step, const std::vector<double>& modes) {
  return in_modes(observation_at(step), modes);
}

}  // namespace

TEST(ModeTracker, KnowsNothingOfLayersThatNeverSaid) {
  ModeTracker modes;
  modes.begin(1);
  modes.observe(step_in(0, {0, kNaN}));
  EXPECT_EQ(modes.mode_of(0), ModeTracker::kFull);
  EXPECT_EQ(modes.mode_of(1), ModeTracker::kUnknown);
  EXPECT_EQ(modes.text_of(1), "");
  EXPECT_EQ(modes.all().size(), 1U);
}

TEST(ModeTracker, AStepWithoutAModeKeepsTheLast) {
  ModeTracker modes;
  modes.begin(1);
  modes.observe(step_in(0, {1}));
  modes.observe(step_in(1, {kNaN}));
  modes.observe(step_in(2, {}));
  EXPECT_EQ(modes.text_of(0), "block attention");
  EXPECT_EQ(modes.switch_count(), 0U);
}

TEST(ModeTracker, TheVariantARunBeganWithIsNamedByTheEventThatEndsIt) {
  ModeTracker modes;
  modes.begin(1);
  modes.observe(step_in(0, {1}));
  const int first = modes.mode_of(0);
  modes.note({1, 10, 0, "moba:512,3", "moba:128,8"});
  modes.observe(step_in(9, {1}));
  EXPECT_EQ(modes.mode_of(0), first);
  EXPECT_EQ(modes.text_of(0), "moba:512,3");
  modes.observe(step_in(10, {1}));
  EXPECT_NE(modes.mode_of(0), first);
  EXPECT_EQ(modes.text_of(0), "moba:128,8");
  modes.note({1, 20, 0, "moba:128,8", "moba:512,3"});
  modes.observe(step_in(20, {1}));
  EXPECT_EQ(modes.mode_of(0), first);
  EXPECT_EQ(modes.switch_count(), 2U);
}

TEST(ModeTracker, ALateEventCountsFromNowOnAndAnOldOneNotAtAll) {
  ModeTracker modes;
  modes.begin(1);
  modes.observe(step_in(0, {1}));
  modes.note({1, 30, 0, "moba:128,8", "moba:64,16"});
  modes.observe(step_in(40, {1}));
  EXPECT_EQ(modes.text_of(0), "moba:64,16");
  // What led to the mode before the one of now.
  modes.note({1, 10, 0, "moba:512,3", "moba:128,8"});
  modes.observe(step_in(41, {1}));
  EXPECT_EQ(modes.text_of(0), "moba:64,16");
  EXPECT_EQ(modes.switch_count(), 1U);
}

TEST(ModeTracker, EventsOfTheNextLaunchWaitForIt) {
  ModeTracker modes;
  modes.begin(1);
  modes.observe(step_in(0, {1}));
  modes.note({2, 5, 0, "full", "moba:512,3"});
  modes.note({0, 0, 0, "full", "moba:7,7"});
  modes.observe(step_in(6, {1}));
  EXPECT_EQ(modes.text_of(0), "block attention");
  modes.begin(2);
  modes.observe(step_in(6, {1}));
  EXPECT_EQ(modes.text_of(0), "moba:512,3");
}

TEST(ModeTracker, EventsWithoutEndAreForgottenOldestFirst) {
  ModeTracker modes;
  modes.begin(1);
  for (std::int64_t step = 0; step < 10'000; ++step) {
    modes.note({1, step, 0, "full", "moba:" + std::to_string(step) + ",2"});
    modes.observe(step_in(step, {1}));
  }
  // More variants than anybody schedules share one baseline; nothing grows without bound.
  EXPECT_LE(modes.mode_of(0), 32);
}

}  // namespace muster::detect
