// SPDX-License-Identifier: Apache-2.0
#include <muster/common/mutex.h>

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace muster {

namespace {

TEST(Mutex, ALockHoldsItUntilTheEndOfTheScope) {
  Mutex mutex;
  {
    const MutexLock lock{mutex};
    std::thread([&mutex] {
      const bool taken = mutex.try_lock();
      EXPECT_FALSE(taken);
      if (taken) {
        mutex.unlock();
      }
    }).join();
  }
  const bool taken = mutex.try_lock();
  EXPECT_TRUE(taken);
  if (taken) {
    mutex.unlock();
  }
}

TEST(Mutex, ALockCanBeOpenedAndClosedAgain) {
  Mutex mutex;
  {
    MutexLock lock{mutex};
    lock.unlock();
    std::thread([&mutex] { const MutexLock other{mutex}; }).join();
    lock.lock();
    lock.unlock();
  }
  const MutexLock lock{mutex};
}

struct Box {
  Mutex mutex;
  CondVar changed;
  bool full MUSTER_GUARDED_BY(mutex) = false;
};

TEST(CondVar, WakesAThreadThatWaitsForAChange) {
  Box box;
  std::thread waiter([&box] {
    const MutexLock lock{box.mutex};
    while (!box.full) {
      box.changed.wait(box.mutex);
    }
    box.full = false;
  });
  {
    const MutexLock lock{box.mutex};
    box.full = true;
    box.changed.notify_all();
  }
  waiter.join();
  const MutexLock lock{box.mutex};
  EXPECT_FALSE(box.full);
}

TEST(CondVar, AWaitEndsAtItsTimeAndHoldsTheMutexAgain) {
  Box box;
  const MutexLock lock{box.mutex};
  while (box.changed.wait_for(box.mutex, std::chrono::nanoseconds{1})) {
  }
  while (box.changed.wait_until(box.mutex, std::chrono::steady_clock::now())) {
  }
  std::thread([&box] {
    const bool taken = box.mutex.try_lock();
    EXPECT_FALSE(taken);
    if (taken) {
      box.mutex.unlock();
    }
  }).join();
}

}  // namespace
}  // namespace muster
