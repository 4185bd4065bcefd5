// SPDX-License-Identifier: Apache-2.0
#include "collector/src/task_queue.h"

#include <utility>

namespace muster::collector {

TaskQueue::TaskQueue(std::size_t tasks_max, std::size_t bytes_max)
    : tasks_max_(tasks_max), bytes_max_(bytes_max) {}

bool TaskQueue::full(const Task& task) const {
  return !tasks_.empty() && (tasks_.size() >= tasks_max_ || bytes_ + task.bytes > bytes_max_);
}

void TaskQueue::append(Task task) {
  bytes_ += task.bytes;
  tasks_.push_back(std::move(task));
  not_empty_.notify_one();
}

bool TaskQueue::try_push(Task& task) {
  const MutexLock lock{mutex_};
  if (closed_) {
    return true;
  }
  if (full(task)) {
    refused_ = true;
    return false;
  }
  append(std::move(task));
  return true;
}

bool TaskQueue::push(Task task) {
  const MutexLock lock{mutex_};
  while (!closed_ && full(task)) {
    not_full_.wait(mutex_);
  }
  if (closed_) {
    return false;
  }
  append(std::move(task));
  return true;
}

TaskQueue::Popped TaskQueue::pop(MonotonicTime until, const Clock& clock) {
  const MutexLock lock{mutex_};
  while (!closed_ && tasks_.empty() && clock.wait_until(not_empty_, mutex_, until)) {
  }
  Popped popped;
  if (tasks_.empty()) {
    popped.finished = closed_;
    return popped;
  }
  popped.task = std::move(tasks_.front());
  tasks_.pop_front();
  bytes_ -= popped.task->bytes;
  // Half empty before readers are woken, so that they do not stop again at once.
  if (refused_ && tasks_.size() <= tasks_max_ / 2 && bytes_ <= bytes_max_ / 2) {
    refused_ = false;
    popped.was_refusing = true;
  }
  not_full_.notify_all();
  return popped;
}

void TaskQueue::close() {
  const MutexLock lock{mutex_};
  closed_ = true;
  not_empty_.notify_all();
  not_full_.notify_all();
}

std::size_t TaskQueue::size() const {
  const MutexLock lock{mutex_};
  return tasks_.size();
}

}  // namespace muster::collector
