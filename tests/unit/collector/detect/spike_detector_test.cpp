// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/collector/detect/observations.h"

#include <muster/detect/spike_detector.h>

#include <gtest/gtest.h>

namespace muster::detect {

namespace {

// A loss of 2.0 +- 0.02 up to `steps`; returns the next step.
std::int64_t warm_up(SpikeDetector& detector, std::int64_t steps = 200, std::uint64_t seed = 3) {
  Random random{seed};
  for (std::int64_t step = 0; step < steps; ++step) {
    static_cast<void>(detector.observe(step, 2.0 + 0.02 * random.normal()));
  }
  return steps;
}

}  // namespace

TEST(SpikeDetector, OneHighStepIsASpikeButNoAlarm) {
  SpikeDetector detector{loss_spike_options()};
  const std::int64_t step = warm_up(detector);
  const auto findings = detector.observe(step, 2.5);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].rule, "spike");
  EXPECT_EQ(findings[0].step, step);
  EXPECT_EQ(findings[0].subject, "loss");
  EXPECT_EQ(findings[0].inputs.at("value"), 2.5);
  EXPECT_GT(findings[0].inputs.at("z"), 6.0);
  EXPECT_FALSE(findings[0].reason.empty());
  EXPECT_TRUE(detector.observe(step + 1, 2.0).empty());
  EXPECT_TRUE(detector.observe(step + 2, 2.0).empty());
  EXPECT_FALSE(detector.alarming());
}

TEST(SpikeDetector, TwoOfThreeHighStepsAlarmOnce) {
  SpikeDetector detector{loss_spike_options()};
  std::int64_t step = warm_up(detector);
  EXPECT_EQ(count_of(detector.observe(step, 2.5), "spike_persistent"), 0U);
  EXPECT_TRUE(detector.observe(++step, 2.0).empty());
  EXPECT_EQ(count_of(detector.observe(++step, 2.6), "spike_persistent"), 1U);
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(detector.observe(++step, 2.6).empty());
  }
  EXPECT_TRUE(detector.alarming());
}

TEST(SpikeDetector, AHarderPartOfTheDataIsUsualAfterAWhile) {
  SpikeDetector detector{loss_spike_options()};
  std::int64_t step = warm_up(detector);
  Random random{7};
  std::size_t marks = 0;
  for (int i = 0; i < 2000; ++i) {
    const double level = i % 10 == 9 ? 2.6 : 2.0;
    marks += detector.observe(step++, level + 0.02 * random.normal()).size();
  }
  EXPECT_LE(marks, 8U);
  EXPECT_TRUE(detector.observe(step++, 2.0).empty());
  EXPECT_EQ(count_of(detector.observe(step++, 4.0), "spike"), 1U);  // Much higher than those.
}

TEST(SpikeDetector, HighStepsThreeApartDoNotAlarm) {
  SpikeDetector detector{loss_spike_options()};
  std::int64_t step = warm_up(detector);
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(count_of(detector.observe(step++, 2.5), "spike_persistent"), 0U);
    EXPECT_TRUE(detector.observe(step++, 2.0).empty());
    EXPECT_TRUE(detector.observe(step++, 2.0).empty());
  }
}

TEST(SpikeDetector, FallingLossIsNoSpike) {
  SpikeDetector detector{loss_spike_options()};
  const std::int64_t step = warm_up(detector);
  EXPECT_TRUE(detector.observe(step, 1.0).empty());
}

TEST(SpikeDetector, WindowIsFrozenWhileAlarming) {
  SpikeDetector detector{loss_spike_options()};
  std::int64_t step = warm_up(detector);
  // Were these to enter the window of 128, its median would have moved after 64 of them.
  for (int i = 0; i < 100; ++i) {
    static_cast<void>(detector.observe(step++, 2.5));
  }
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(detector.observe(step++, 2.0).empty());
  }
  EXPECT_FALSE(detector.alarming());
  EXPECT_EQ(count_of(detector.observe(step, 2.5), "spike"), 1U);
}

TEST(SpikeDetector, LevelThatStaysIsAcceptedAsANewRegime) {
  SpikeDetector detector{loss_spike_options()};
  std::int64_t step = warm_up(detector);
  Random random{4};
  std::size_t alarms = 0;
  for (int i = 0; i < 400; ++i) {
    alarms += count_of(detector.observe(step++, 3.0 + 0.02 * random.normal()), "spike_persistent");
  }
  EXPECT_EQ(alarms, 1U);
  EXPECT_FALSE(detector.alarming());
  EXPECT_EQ(count_of(detector.observe(step, 3.5), "spike"), 1U);
}

TEST(SpikeDetector, ALevelIsAcceptedWithItsLastFrozenValue) {
  SpikeDetector detector{loss_spike_options()};
  std::int64_t step = warm_up(detector);
  for (int i = 1; i < loss_spike_options().freeze_steps_max; ++i) {
    static_cast<void>(detector.observe(step++, 3.0));
  }
  EXPECT_TRUE(detector.alarming());
  static_cast<void>(detector.observe(step, 3.0));
  EXPECT_FALSE(detector.alarming());
}

TEST(SpikeDetector, ValuesWithinAnEpisodeAreFrozenHighOrNot) {
  SpikeDetector detector{loss_spike_options()};
  std::int64_t step = warm_up(detector);
  for (int i = 1; i < loss_spike_options().freeze_steps_max; ++i) {
    static_cast<void>(detector.observe(step++, i % 3 == 0 ? 2.0 : 3.0));
  }
  EXPECT_TRUE(detector.alarming());
  static_cast<void>(detector.observe(step, 3.0));
  EXPECT_FALSE(detector.alarming());
}

TEST(SpikeDetector, ValuesFromBeforeAnInterruptionDoNotCountTowardsANewLevel) {
  SpikeDetector detector{loss_spike_options()};
  std::int64_t step = warm_up(detector);
  for (int half = 0; half < 2; ++half) {
    detector.suspend();
    for (int i = 0; i < loss_spike_options().freeze_steps_max - 1; ++i) {
      static_cast<void>(detector.observe(step++, 3.0));
    }
    EXPECT_TRUE(detector.alarming()) << half;
  }
}

TEST(SpikeDetector, NothingIsFoundDuringWarmUp) {
  SpikeDetector detector{loss_spike_options()};
  for (std::int64_t step = 0; step < 64; ++step) {
    EXPECT_TRUE(detector.observe(step, step % 5 == 0 ? 100.0 : 2.0).empty());
  }
}

TEST(SpikeDetector, ResetBringsTheWarmUpBack) {
  SpikeDetector detector{loss_spike_options()};
  const std::int64_t step = warm_up(detector);
  detector.reset();
  EXPECT_TRUE(detector.observe(step, 50.0).empty());
}

TEST(SpikeDetector, ValuesThatAreNotFiniteLeaveNoTrace) {
  SpikeDetector with{loss_spike_options()};
  SpikeDetector without{loss_spike_options()};
  Random random{5};
  for (std::int64_t step = 0; step < 500; ++step) {
    const double value = 2.0 + 0.02 * random.normal() + (step == 450 ? 1.0 : 0.0);
    for (const double bad : {kNaN, kInfinity, -kInfinity}) {
      EXPECT_TRUE(with.observe(step, bad).empty());
    }
    const auto a = with.observe(step, value);
    const auto b = without.observe(step, value);
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t i = 0; i < a.size(); ++i) {
      EXPECT_EQ(a[i].inputs, b[i].inputs);
    }
  }
}

TEST(SpikeDetector, NormOfZeroIsPassedOver) {
  SpikeDetector detector{gradient_norm_spike_options()};
  for (std::int64_t step = 0; step < 100; ++step) {
    EXPECT_TRUE(detector.observe(step, 0.2).empty());
  }
  EXPECT_TRUE(detector.observe(100, 0.0).empty());
  EXPECT_EQ(count_of(detector.observe(101, 2.0), "spike"), 1U);
}

TEST(SpikeDetector, CopyForksTheStream) {
  SpikeDetector detector{loss_spike_options()};
  const std::int64_t step = warm_up(detector);
  SpikeDetector fork = detector;
  static_cast<void>(fork.observe(step, 3.0));
  static_cast<void>(fork.observe(step + 1, 3.0));
  EXPECT_TRUE(fork.alarming());
  EXPECT_FALSE(detector.alarming());
}

}  // namespace muster::detect
