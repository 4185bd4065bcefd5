// SPDX-License-Identifier: Apache-2.0
// The bounded queue from the I/O thread to the writer thread.
//
// Thread-safe. Closing wakes the consumer, which then drains what is left.
// Invariant: at most `tasks_max` tasks and `bytes_max` bytes are queued, except that an empty queue
// takes any task, so that one larger than the bound is not refused for ever.
#pragma once

#include "collector/src/task.h"

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <optional>

namespace muster::collector {

class TaskQueue {
 public:
  TaskQueue(std::size_t tasks_max, std::size_t bytes_max);

  // False, and `task` untouched, when the queue is full. A closed queue swallows the task.
  [[nodiscard]] bool try_push(Task& task);

  // Waits for room. False when the queue is closed.
  [[nodiscard]] bool push(Task task);

  struct Popped {
    std::optional<Task> task;  // Empty after a timeout, or if closed and empty.
    bool was_refusing{false};  // A try_push had failed and there is room again.
    bool finished{false};      // Closed and empty.
  };

  [[nodiscard]] Popped pop(std::chrono::steady_clock::time_point until);

  void close();
  [[nodiscard]] std::size_t size() const;

 private:
  [[nodiscard]] bool full(const Task& task) const;

  const std::size_t tasks_max_;
  const std::size_t bytes_max_;
  mutable std::mutex mutex_;
  std::condition_variable not_empty_;
  std::condition_variable not_full_;
  std::deque<Task> tasks_;
  std::size_t bytes_{0};
  bool refused_{false};
  bool closed_{false};
};

}  // namespace muster::collector
