// SPDX-License-Identifier: Apache-2.0
// The bounded queue from the I/O thread to the writer thread.
//
// Thread-safe. Closing wakes the consumer, which then drains what is left.
// Invariant: at most `tasks_max` tasks and `bytes_max` bytes are queued, except that an empty queue
// takes any task, so that one larger than the bound is not refused for ever.
#pragma once

#include "collector/src/task.h"

#include <muster/common/clock.h>
#include <muster/common/mutex.h>

#include <cstddef>
#include <deque>
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

  // Waits for a task until `clock` reaches `until`.
  [[nodiscard]] Popped pop(MonotonicTime until, const Clock& clock);

  void close();
  [[nodiscard]] std::size_t size() const;

 private:
  [[nodiscard]] bool full(const Task& task) const MUSTER_REQUIRES(mutex_);
  void append(Task task) MUSTER_REQUIRES(mutex_);

  const std::size_t tasks_max_;
  const std::size_t bytes_max_;
  mutable Mutex mutex_;
  CondVar not_empty_;
  CondVar not_full_;
  std::deque<Task> tasks_ MUSTER_GUARDED_BY(mutex_);
  std::size_t bytes_ MUSTER_GUARDED_BY(mutex_){0};
  bool refused_ MUSTER_GUARDED_BY(mutex_){false};
  bool closed_ MUSTER_GUARDED_BY(mutex_){false};
};

}  // namespace muster::collector
