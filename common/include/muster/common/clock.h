// SPDX-License-Identifier: Apache-2.0
// Time as a dependency: programs pass a SystemClock, tests a ManualClock.
//
// Elapsed time and deadlines use the monotonic clock; wall time is for display only.
#pragma once

#include <muster/common/mutex.h>

#include <chrono>
#include <cstdint>

namespace muster {

using MonotonicTime = std::chrono::steady_clock::time_point;
using WallTime = std::chrono::system_clock::time_point;

// Thread-safe.
class Clock {
 public:
  Clock() = default;
  Clock(const Clock&) = delete;
  Clock& operator=(const Clock&) = delete;
  Clock(Clock&&) = delete;
  Clock& operator=(Clock&&) = delete;
  virtual ~Clock() = default;

  [[nodiscard]] virtual MonotonicTime now() const = 0;
  [[nodiscard]] virtual WallTime wall_now() const = 0;

  // Waits until `changed` is notified or this clock reaches `time`. May return before either, so
  // call it in a loop over the condition. Returns false if `time` has been reached.
  [[nodiscard]] virtual bool wait_until(CondVar& changed, Mutex& mutex, MonotonicTime time) const
      MUSTER_REQUIRES(mutex) = 0;

  // Returns the clock of this machine, for parameters that default to it.
  [[nodiscard]] static const Clock& system();
};

class SystemClock final : public Clock {
 public:
  [[nodiscard]] MonotonicTime now() const override;
  [[nodiscard]] WallTime wall_now() const override;
  [[nodiscard]] bool wait_until(CondVar& changed, Mutex& mutex, MonotonicTime time) const override
      MUSTER_REQUIRES(mutex);
};

// A clock that moves only when advanced.
class ManualClock final : public Clock {
 public:
  [[nodiscard]] MonotonicTime now() const override;
  [[nodiscard]] WallTime wall_now() const override;
  // Looks at the clock every millisecond, so that advance() needs to know no waiter.
  [[nodiscard]] bool wait_until(CondVar& changed, Mutex& mutex, MonotonicTime time) const override
      MUSTER_REQUIRES(mutex);
  void advance(std::chrono::nanoseconds by);

 private:
  mutable Mutex mutex_;
  std::chrono::nanoseconds elapsed_ MUSTER_GUARDED_BY(mutex_){0};
};

[[nodiscard]] std::int64_t unix_ns(WallTime time);

// Converts seconds, which must not be NaN. Values beyond 292 years, infinities included, become the
// longest duration.
[[nodiscard]] std::chrono::nanoseconds nanoseconds_from(double seconds);

// A time after which a wait gives up; by default never. Sums that leave the range of the clock mean
// never, too. The members without a clock read Clock::system(), which is also the clock of every
// wait in the kernel (futex, poll).
struct Deadline {
  MonotonicTime at{MonotonicTime::max()};

  [[nodiscard]] static Deadline after(std::chrono::nanoseconds duration) {
    return after(duration, Clock::system());
  }

  [[nodiscard]] static Deadline after(std::chrono::nanoseconds duration, const Clock& clock) {
    return Deadline{clock.now()}.extended(duration);
  }

  [[nodiscard]] Deadline extended(std::chrono::nanoseconds by) const {
    return by > MonotonicTime::max() - at ? Deadline{} : Deadline{at + by};
  }

  [[nodiscard]] bool expired() const { return expired(Clock::system()); }

  [[nodiscard]] bool expired(const Clock& clock) const { return clock.now() >= at; }

  // Never negative; nanoseconds::max() without a limit.
  [[nodiscard]] std::chrono::nanoseconds remaining() const { return remaining(Clock::system()); }

  [[nodiscard]] std::chrono::nanoseconds remaining(const Clock& clock) const;
};

}  // namespace muster
