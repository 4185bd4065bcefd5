// SPDX-License-Identifier: Apache-2.0
#include "collector/src/task_queue.h"

#include <utility>

namespace muster::collector {

TaskQueue::TaskQueue(std::size_t tasks_max, std::size_t bytes_max)
    : tasks_max_(tasks_max), bytes_max_(bytes_max) {}

bool TaskQueue::full(const Task& task) const {
  return !tasks_.empty() && (tasks_.size() >= tasks_max_ || bytes_ + task.bytes > bytes_max_);
}

bool TaskQueue::try_push(Task& task) {
  const std::lock_guard lock{mutex_};
  if (closed_) {
    return true;
  }
  if (full(task)) {
    refused_ = true;
    return false;
  }
  bytes_ += task.bytes;
  tasks_.push_back(std::move(task));
  not_empty_.notify_one();
  return true;
}

bool TaskQueue::push(Task task) {
  std::unique_lock lock{mutex_};
  not_full_.wait(lock, [&] { return closed_ || !full(task); });
  if (closed_) {
    return false;
  }
  bytes_ += task.bytes;
  tasks_.push_back(std::move(task));
  not_empty_.notify_one();
  return true;
}

TaskQueue::Popped TaskQueue::pop(std::chrono::steady_clock::time_point until) {
  std::unique_lock lock{mutex_};
  not_empty_.wait_until(lock, until, [&] { return closed_ || !tasks_.empty(); });
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
  const std::lock_guard lock{mutex_};
  closed_ = true;
  not_empty_.notify_all();
  not_full_.notify_all();
}

std::size_t TaskQueue::size() const {
  const std::lock_guard lock{mutex_};
  return tasks_.size();
}

}  // namespace muster::collector
