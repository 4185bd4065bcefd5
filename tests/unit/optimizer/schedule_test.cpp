// SPDX-License-Identifier: Apache-2.0
#include <muster/optimizer/schedule.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace muster::optimizer {
namespace {

using ::testing::HasSubstr;

constexpr ScheduleOptions kSchedule{0.8, 4, 104, 0.1};
constexpr ScheduleKind kKinds[] = {
    ScheduleKind::kCosine,
    ScheduleKind::kConstant,
    ScheduleKind::kLinear,
    ScheduleKind::kWsd,
    ScheduleKind::kInverseSqrt};

ScheduleOptions of_kind(ScheduleKind kind) {
  ScheduleOptions schedule = kSchedule;
  schedule.kind = kind;
  schedule.cooldown_steps = kind == ScheduleKind::kWsd ? 20 : 0;
  return schedule;
}

TEST(Schedule, WarmsUpLinearlyToThePeakWhateverTheKind) {
  for (const ScheduleKind kind : kKinds) {
    EXPECT_DOUBLE_EQ(learning_rate_at(of_kind(kind), 0), 0.2);
    EXPECT_DOUBLE_EQ(learning_rate_at(of_kind(kind), 1), 0.4);
    EXPECT_DOUBLE_EQ(learning_rate_at(of_kind(kind), 3), 0.8);
  }
}

// No jump where the warmup ends, and none anywhere after it: no step takes more than 1/sqrt(steps
// of the decay) of the peak, the slope of the steepest shape at its start.
TEST(Schedule, NeverJumps) {
  for (const CooldownShape shape : {CooldownShape::kLinear, CooldownShape::kOneMinusSqrt}) {
    for (const ScheduleKind kind : kKinds) {
      ScheduleOptions schedule = of_kind(kind);
      schedule.cooldown = shape;
      for (std::int64_t step = schedule.warmup_steps; step < 120; ++step) {
        const double change =
            std::abs(learning_rate_at(schedule, step) - learning_rate_at(schedule, step - 1));
        EXPECT_LE(change, 0.72 * std::sqrt(1.0 / 20) + 1e-12)
            << to_string(kind) << " at step " << step;
      }
    }
  }
}

TEST(Schedule, NeverRisesAfterTheWarmup) {
  for (const ScheduleKind kind : kKinds) {
    const ScheduleOptions schedule = of_kind(kind);
    for (std::int64_t step = schedule.warmup_steps; step < 200; ++step) {
      EXPECT_LE(learning_rate_at(schedule, step), learning_rate_at(schedule, step - 1));
    }
  }
}

TEST(Schedule, FallsAlongTheCosine) {
  EXPECT_DOUBLE_EQ(learning_rate_at(kSchedule, 4), 0.8);
  EXPECT_NEAR(learning_rate_at(kSchedule, 54), 0.08 + 0.72 * 0.5, 1e-12);
  // cos(pi / 4) = sqrt(1/2) a quarter of the way.
  EXPECT_NEAR(learning_rate_at(kSchedule, 29), 0.08 + 0.36 * (1 + 0.70710678118654752), 1e-12);
}

TEST(Schedule, FallsAlongAStraightLine) {
  const ScheduleOptions schedule = of_kind(ScheduleKind::kLinear);
  EXPECT_DOUBLE_EQ(learning_rate_at(schedule, 4), 0.8);
  EXPECT_NEAR(learning_rate_at(schedule, 29), 0.08 + 0.72 * 0.75, 1e-12);
  EXPECT_NEAR(learning_rate_at(schedule, 54), 0.08 + 0.72 * 0.5, 1e-12);
}

TEST(Schedule, FallsByTheInverseRoot) {
  const ScheduleOptions schedule = of_kind(ScheduleKind::kInverseSqrt);
  EXPECT_DOUBLE_EQ(learning_rate_at(schedule, 15), 0.4);  // a quarter as many steps were warmup
  EXPECT_DOUBLE_EQ(learning_rate_at(schedule, 399), 0.08);
  ScheduleOptions cold = schedule;
  cold.warmup_steps = 0;
  EXPECT_DOUBLE_EQ(learning_rate_at(cold, 0), 0.8);
  EXPECT_DOUBLE_EQ(learning_rate_at(cold, 3), 0.4);
}

TEST(Schedule, StaysAtThePeakForEverWhenConstant) {
  const ScheduleOptions schedule = of_kind(ScheduleKind::kConstant);
  for (const std::int64_t step : {4, 50, 103, 104, 100000}) {
    EXPECT_DOUBLE_EQ(learning_rate_at(schedule, step), 0.8);
  }
}

TEST(Schedule, WsdIsConstantUntilItsCooldown) {
  const ScheduleOptions schedule = of_kind(ScheduleKind::kWsd);
  for (std::int64_t step = 4; step <= 84; ++step) {
    EXPECT_DOUBLE_EQ(learning_rate_at(schedule, step), 0.8) << step;
  }
  EXPECT_LT(learning_rate_at(schedule, 85), 0.8);
  EXPECT_NEAR(learning_rate_at(schedule, 94), 0.08 + 0.72 * 0.5, 1e-12);
  EXPECT_NEAR(learning_rate_at(schedule, 103), 0.08 + 0.72 / 20, 1e-12);
}

TEST(Schedule, WsdCoolsDownByOneMinusTheRoot) {
  ScheduleOptions schedule = of_kind(ScheduleKind::kWsd);
  schedule.cooldown = CooldownShape::kOneMinusSqrt;
  EXPECT_DOUBLE_EQ(learning_rate_at(schedule, 84), 0.8);
  EXPECT_NEAR(learning_rate_at(schedule, 89), 0.08 + 0.72 * 0.5, 1e-12);  // 1 - sqrt(1/4)
  EXPECT_DOUBLE_EQ(learning_rate_at(schedule, 104), 0.08);
}

TEST(Schedule, WsdWithoutACooldownStaysAtThePeak) {
  ScheduleOptions schedule = of_kind(ScheduleKind::kWsd);
  schedule.cooldown_steps = 0;
  EXPECT_DOUBLE_EQ(learning_rate_at(schedule, 103), 0.8);
  EXPECT_DOUBLE_EQ(learning_rate_at(schedule, 104), 0.8);
}

TEST(Schedule, StaysAtTheFloorFromTheLastStepOn) {
  for (const ScheduleKind kind :
       {ScheduleKind::kCosine, ScheduleKind::kLinear, ScheduleKind::kWsd}) {
    EXPECT_DOUBLE_EQ(learning_rate_at(of_kind(kind), 104), 0.08);
    EXPECT_DOUBLE_EQ(learning_rate_at(of_kind(kind), 5000), 0.08);
  }
}

TEST(Schedule, StartsAtThePeakWithoutWarmup) {
  EXPECT_DOUBLE_EQ(learning_rate_at({0.5, 0, 10, 0.0}, 0), 0.5);
}

TEST(Schedule, HoldsTheFloorAfterAWarmupLongerThanTheRun) {
  EXPECT_DOUBLE_EQ(learning_rate_at({1.0, 20, 10, 0.5}, 9), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate_at({1.0, 20, 10, 0.5}, 25), 0.5);
}

TEST(Schedule, NamesRoundTripAndListTheKnown) {
  for (const ScheduleKind kind : kKinds) {
    EXPECT_EQ(parse_schedule(to_string(kind)).value(), kind);
  }
  EXPECT_THAT(parse_schedule("step").status().message(), HasSubstr("inverse_sqrt"));
}

TEST(Schedule, RefusesWhatCanNeverWork) {
  const auto refusal = [](auto&& change) {
    ScheduleOptions schedule = of_kind(ScheduleKind::kWsd);
    change(schedule);
    return validate(schedule).message();
  };
  EXPECT_EQ(refusal([](ScheduleOptions&) {}), "");
  EXPECT_THAT(
      refusal([](ScheduleOptions& s) { s.learning_rate = std::nan(""); }),
      HasSubstr("learning_rate"));
  EXPECT_THAT(refusal([](ScheduleOptions& s) { s.warmup_steps = -1; }), HasSubstr("warmup_steps"));
  EXPECT_THAT(refusal([](ScheduleOptions& s) { s.final_ratio = -1; }), HasSubstr("final_ratio"));
  EXPECT_THAT(
      refusal([](ScheduleOptions& s) { s.cooldown_steps = 101; }),
      HasSubstr("(4 steps) and cooldown (101) do not fit into schedule.total_steps 104"));
  EXPECT_THAT(
      refusal([](ScheduleOptions& s) { s.kind = ScheduleKind::kCosine; }),
      HasSubstr("this one is cosine"));
}

}  // namespace
}  // namespace muster::optimizer
