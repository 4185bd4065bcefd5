// SPDX-License-Identifier: Apache-2.0
// Mutex, MutexLock and CondVar: the standard ones, annotated for clang's -Wthread-safety.
//
// A member with MUSTER_GUARDED_BY(mutex_) may be used only while mutex_ is held; a function with
// MUSTER_REQUIRES(mutex_) may be called only then. clang checks both at compile time; for other
// compilers the macros are empty.
//
//   class Counter {
//    public:
//     void add() {
//       const MutexLock lock{mutex_};
//       ++count_;
//       changed_.notify_all();
//     }
//     void wait_for_first() {
//       const MutexLock lock{mutex_};
//       while (count_ == 0) {  // A loop, not a predicate: clang does not look into lambdas.
//         changed_.wait(mutex_);
//       }
//     }
//
//    private:
//     Mutex mutex_;
//     CondVar changed_;
//     int count_ MUSTER_GUARDED_BY(mutex_) = 0;
//   };
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define MUSTER_THREAD_ANNOTATION_(attribute) __attribute__((attribute))
#else
#define MUSTER_THREAD_ANNOTATION_(attribute)
#endif

#define MUSTER_CAPABILITY(name) MUSTER_THREAD_ANNOTATION_(capability(name))
#define MUSTER_SCOPED_CAPABILITY MUSTER_THREAD_ANNOTATION_(scoped_lockable)
// On a member: the mutex to hold while using it, or while using what it points to.
#define MUSTER_GUARDED_BY(mutex) MUSTER_THREAD_ANNOTATION_(guarded_by(mutex))
#define MUSTER_PT_GUARDED_BY(mutex) MUSTER_THREAD_ANNOTATION_(pt_guarded_by(mutex))
// On a function: mutexes that the caller must hold, and must not hold.
#define MUSTER_REQUIRES(...) MUSTER_THREAD_ANNOTATION_(requires_capability(__VA_ARGS__))
#define MUSTER_EXCLUDES(...) MUSTER_THREAD_ANNOTATION_(locks_excluded(__VA_ARGS__))
// On a function that returns holding a mutex, or having released it.
#define MUSTER_ACQUIRE(...) MUSTER_THREAD_ANNOTATION_(acquire_capability(__VA_ARGS__))
#define MUSTER_RELEASE(...) MUSTER_THREAD_ANNOTATION_(release_capability(__VA_ARGS__))
#define MUSTER_TRY_ACQUIRE(...) MUSTER_THREAD_ANNOTATION_(try_acquire_capability(__VA_ARGS__))
// On a function whose locking clang cannot follow; state the reason beside it.
#define MUSTER_NO_THREAD_SAFETY_ANALYSIS MUSTER_THREAD_ANNOTATION_(no_thread_safety_analysis)

namespace muster {

class MUSTER_CAPABILITY("mutex") Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;
  Mutex(Mutex&&) = delete;
  Mutex& operator=(Mutex&&) = delete;
  ~Mutex() = default;

  void lock() MUSTER_ACQUIRE() { mutex_.lock(); }

  void unlock() MUSTER_RELEASE() { mutex_.unlock(); }

  [[nodiscard]] bool try_lock() MUSTER_TRY_ACQUIRE(true) { return mutex_.try_lock(); }

 private:
  friend class CondVar;

  std::mutex mutex_;
};

// Holds a mutex for a scope; unlock() and lock() open a gap in it.
class MUSTER_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) MUSTER_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }

  ~MutexLock() MUSTER_RELEASE() {
    if (held_) {
      mutex_.unlock();
    }
  }

  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;
  MutexLock(MutexLock&&) = delete;
  MutexLock& operator=(MutexLock&&) = delete;

  void unlock() MUSTER_RELEASE() {
    mutex_.unlock();
    held_ = false;
  }

  void lock() MUSTER_ACQUIRE() {
    mutex_.lock();
    held_ = true;
  }

 private:
  Mutex& mutex_;
  bool held_{true};
};

// A condition variable of a Mutex. The waits may return without a notification: call them in a
// loop over the condition.
class CondVar {
 public:
  void notify_one() noexcept { condition_.notify_one(); }

  void notify_all() noexcept { condition_.notify_all(); }

  // Releases `mutex` while waiting and holds it again afterwards.
  void wait(Mutex& mutex) MUSTER_REQUIRES(mutex) {
    std::unique_lock lock{mutex.mutex_, std::adopt_lock};
    condition_.wait(lock);
    lock.release();
  }

  // Return false if the wait ended by its time.
  template <typename Clock, typename Duration>
  [[nodiscard]] bool wait_until(Mutex& mutex, const std::chrono::time_point<Clock, Duration>& time)
      MUSTER_REQUIRES(mutex) {
    std::unique_lock lock{mutex.mutex_, std::adopt_lock};
    const bool in_time = condition_.wait_until(lock, time) == std::cv_status::no_timeout;
    lock.release();
    return in_time;
  }

  template <typename Rep, typename Period>
  [[nodiscard]] bool wait_for(Mutex& mutex, const std::chrono::duration<Rep, Period>& duration)
      MUSTER_REQUIRES(mutex) {
    return wait_until(mutex, std::chrono::steady_clock::now() + duration);
  }

 private:
  std::condition_variable condition_;
};

}  // namespace muster
