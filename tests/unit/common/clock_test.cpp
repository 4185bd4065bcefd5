// SPDX-License-Identifier: Apache-2.0
#include <muster/common/clock.h>

#include <gtest/gtest.h>

#include <limits>

namespace muster {

namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

TEST(ManualClock, StandsStillUntilAdvanced) {
  ManualClock clock;
  const MonotonicTime start = clock.now();
  EXPECT_EQ(clock.now(), start);
  clock.advance(milliseconds{1500});
  EXPECT_EQ(clock.now() - start, milliseconds{1500});
}

TEST(ManualClock, WallTimeAdvancesWithIt) {
  ManualClock clock;
  const std::int64_t start_ns = unix_ns(clock.wall_now());
  clock.advance(seconds{2});
  EXPECT_EQ(unix_ns(clock.wall_now()) - start_ns, 2'000'000'000);
}

TEST(SystemClock, MonotonicTimeNeverGoesBack) {
  const SystemClock clock;
  MonotonicTime last = clock.now();
  for (int i = 0; i < 1000; ++i) {
    const MonotonicTime now = clock.now();
    ASSERT_GE(now, last);
    last = now;
  }
}

TEST(SystemClock, WallTimeIsAfterThisCodeWasWritten) {
  EXPECT_GT(unix_ns(SystemClock{}.wall_now()), 1'700'000'000'000'000'000);
}

TEST(Deadline, DefaultNeverExpires) {
  EXPECT_FALSE(Deadline{}.expired());
  EXPECT_EQ(Deadline{}.remaining(), nanoseconds::max());
}

TEST(Deadline, PastDeadlineHasNothingLeft) {
  const Deadline deadline = Deadline::after(-seconds{1});
  EXPECT_TRUE(deadline.expired());
  EXPECT_EQ(deadline.remaining(), nanoseconds{0});
}

TEST(Deadline, FutureDeadlineCountsDown) {
  const Deadline deadline = Deadline::after(hours{1});
  EXPECT_FALSE(deadline.expired());
  EXPECT_GT(deadline.remaining(), hours{1} - seconds{30});
  EXPECT_LE(deadline.remaining(), hours{1});
}

TEST(Clock, SecondsBeyondTheRangeBecomeTheLongestDuration) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(nanoseconds_from(1.5), milliseconds{1500});
  EXPECT_EQ(nanoseconds_from(-0.25), milliseconds{-250});
  for (const double much : {1e10, 1e300, kInfinity}) {
    EXPECT_EQ(nanoseconds_from(much), nanoseconds::max());
    EXPECT_EQ(nanoseconds_from(-much), nanoseconds::min());
  }
}

TEST(Deadline, OneBeyondTheClockNeverComes) {
  EXPECT_EQ(Deadline::after(nanoseconds::max()).at, MonotonicTime::max());
  EXPECT_EQ(Deadline{}.extended(seconds{1}).at, MonotonicTime::max());
  EXPECT_FALSE(Deadline::after(Deadline{}.remaining()).expired());
}

TEST(Deadline, FollowsTheGivenClock) {
  ManualClock clock;
  const Deadline deadline = Deadline::after(std::chrono::seconds{2}, clock);
  EXPECT_FALSE(deadline.expired(clock));
  clock.advance(std::chrono::milliseconds{1500});
  EXPECT_EQ(deadline.remaining(clock), std::chrono::milliseconds{500});
  clock.advance(std::chrono::milliseconds{500});
  EXPECT_TRUE(deadline.expired(clock));
  clock.advance(std::chrono::seconds{1});
  EXPECT_EQ(deadline.remaining(clock), std::chrono::nanoseconds{0});
}

TEST(Clock, AWaitEndsWhenItsTimeHasCome) {
  ManualClock clock;
  Mutex mutex;
  CondVar changed;
  const MutexLock lock{mutex};
  const MonotonicTime time = clock.now() + seconds{1};
  EXPECT_TRUE(clock.wait_until(changed, mutex, time));
  clock.advance(seconds{1});
  EXPECT_FALSE(clock.wait_until(changed, mutex, time));
  EXPECT_FALSE(Clock::system().wait_until(changed, mutex, Clock::system().now() - seconds{1}));
}

}  // namespace

}  // namespace muster
