// SPDX-License-Identifier: Apache-2.0
#include "collector/src/task_queue.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace muster::collector {
namespace {

Task task_of(std::size_t bytes) {
  return Task{nullptr, SessionOpened{}, bytes};
}

TaskQueue::Popped pop_now(TaskQueue& queue) {
  return queue.pop(MonotonicTime{}, Clock::system());
}

TEST(TaskQueue, RefusesBeyondTheTaskBoundAndTellsWhenThereIsRoom) {
  TaskQueue queue{2, 1000};
  for (int i = 0; i < 2; ++i) {
    Task task = task_of(1);
    EXPECT_TRUE(queue.try_push(task));
  }
  Task refused = task_of(1);
  EXPECT_FALSE(queue.try_push(refused));
  EXPECT_TRUE(pop_now(queue).was_refusing);
  EXPECT_FALSE(pop_now(queue).was_refusing);
}

TEST(TaskQueue, RefusesBeyondTheByteBoundButTakesOneLargeTaskWhenEmpty) {
  TaskQueue queue{10, 100};
  Task large = task_of(500);
  EXPECT_TRUE(queue.try_push(large));
  Task small = task_of(1);
  EXPECT_FALSE(queue.try_push(small));
  ASSERT_TRUE(pop_now(queue).task.has_value());
  EXPECT_TRUE(queue.try_push(small));
}

TEST(TaskQueue, DrainsAfterCloseAndThenSaysThatItIsFinished) {
  TaskQueue queue{10, 100};
  Task task = task_of(1);
  EXPECT_TRUE(queue.try_push(task));
  queue.close();
  EXPECT_TRUE(pop_now(queue).task.has_value());
  EXPECT_TRUE(pop_now(queue).finished);
  EXPECT_FALSE(queue.push(task_of(1)));
}

TEST(TaskQueue, WakesAPusherThatWaitsForRoom) {
  TaskQueue queue{1, 100};
  Task first = task_of(1);
  ASSERT_TRUE(queue.try_push(first));
  bool pushed = false;
  std::thread pusher{[&] { pushed = queue.push(task_of(2)); }};
  while (!pop_now(queue).task.has_value()) {
  }
  pusher.join();
  EXPECT_TRUE(pushed);
  EXPECT_EQ(queue.size(), 1U);
}

}  // namespace
}  // namespace muster::collector
