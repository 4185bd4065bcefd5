#include <muster/optimizer/options.h>

#include <gtest/gtest.h>

namespace muster::optimizer {
namespace {

constexpr ScheduleOptions kSchedule{0.8, 4, 104, 0.1};

TEST(Schedule, WarmsUpLinearlyToThePeak) {
  EXPECT_DOUBLE_EQ(learning_rate_at(kSchedule, 0), 0.2);
  EXPECT_DOUBLE_EQ(learning_rate_at(kSchedule, 1), 0.4);
  EXPECT_DOUBLE_EQ(learning_rate_at(kSchedule, 3), 0.8);
}

TEST(Schedule, FallsAlongTheCosine) {
  EXPECT_DOUBLE_EQ(learning_rate_at(kSchedule, 4), 0.8);
  EXPECT_NEAR(learning_rate_at(kSchedule, 54), 0.08 + 0.72 * 0.5, 1e-12);
  // cos(pi / 4) = sqrt(1/2) a quarter of the way.
  EXPECT_NEAR(learning_rate_at(kSchedule, 29), 0.08 + 0.36 * (1 + 0.70710678118654752), 1e-12);
}

TEST(Schedule, StaysAtTheFloorFromTheLastStepOn) {
  EXPECT_DOUBLE_EQ(learning_rate_at(kSchedule, 104), 0.08);
  EXPECT_DOUBLE_EQ(learning_rate_at(kSchedule, 5000), 0.08);
}

TEST(Schedule, StartsAtThePeakWithoutWarmup) {
  EXPECT_DOUBLE_EQ(learning_rate_at({0.5, 0, 10, 0.0}, 0), 0.5);
}

TEST(Schedule, HoldsTheFloorAfterAWarmupLongerThanTheRun) {
  EXPECT_DOUBLE_EQ(learning_rate_at({1.0, 20, 10, 0.5}, 9), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate_at({1.0, 20, 10, 0.5}, 25), 0.5);
}

}  // namespace
}  // namespace muster::optimizer
