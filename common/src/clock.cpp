// SPDX-License-Identifier: Apache-2.0
#include <muster/common/clock.h>

#include <algorithm>

namespace muster {

const Clock& Clock::system() {
  static const SystemClock kClock;
  return kClock;
}

MonotonicTime SystemClock::now() const {
  return std::chrono::steady_clock::now();
}

WallTime SystemClock::wall_now() const {
  return std::chrono::system_clock::now();
}

bool SystemClock::wait_until(CondVar& changed, Mutex& mutex, MonotonicTime time) const {
  return changed.wait_until(mutex, time);
}

MonotonicTime ManualClock::now() const {
  const MutexLock lock{mutex_};
  return MonotonicTime{} + elapsed_;
}

WallTime ManualClock::wall_now() const {
  const MutexLock lock{mutex_};
  return WallTime{} + std::chrono::duration_cast<WallTime::duration>(elapsed_);
}

bool ManualClock::wait_until(CondVar& changed, Mutex& mutex, MonotonicTime time) const {
  return changed.wait_for(mutex, std::chrono::milliseconds{1}) || now() < time;
}

void ManualClock::advance(std::chrono::nanoseconds by) {
  const MutexLock lock{mutex_};
  elapsed_ += by;
}

std::chrono::nanoseconds nanoseconds_from(double seconds) {
  constexpr double kMax = 9.2e9;
  using std::chrono::nanoseconds;
  if (seconds > kMax || seconds < -kMax) {
    return seconds > 0 ? nanoseconds::max() : nanoseconds::min();
  }
  return std::chrono::duration_cast<nanoseconds>(std::chrono::duration<double>(seconds));
}

std::int64_t unix_ns(WallTime time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

std::chrono::nanoseconds Deadline::remaining(const Clock& clock) const {
  if (at == MonotonicTime::max()) {
    return std::chrono::nanoseconds::max();
  }
  return std::max(std::chrono::nanoseconds{0}, at - clock.now());
}

}  // namespace muster
