// Time as a dependency: main hands in a SystemClock, tests a ManualClock.
//
// Elapsed time and deadlines use the monotonic clock; wall time is for display only.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>

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
};

class SystemClock final : public Clock {
 public:
  [[nodiscard]] MonotonicTime now() const override;
  [[nodiscard]] WallTime wall_now() const override;
};

// Stands still until advanced.
class ManualClock final : public Clock {
 public:
  [[nodiscard]] MonotonicTime now() const override;
  [[nodiscard]] WallTime wall_now() const override;
  void advance(std::chrono::nanoseconds by);

 private:
  mutable std::mutex mutex_;
  std::chrono::nanoseconds elapsed_{0};
};

[[nodiscard]] std::int64_t unix_ns(WallTime time);

// A point on the machine's monotonic clock after which a wait gives up.
struct Deadline {
  MonotonicTime at{MonotonicTime::max()};

  [[nodiscard]] static Deadline after(std::chrono::nanoseconds duration) {
    return Deadline{std::chrono::steady_clock::now() + duration};
  }

  [[nodiscard]] bool expired() const { return std::chrono::steady_clock::now() >= at; }

  // Never negative.
  [[nodiscard]] std::chrono::nanoseconds remaining() const;
};

}  // namespace muster
