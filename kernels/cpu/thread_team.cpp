// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/thread_team.h"

#include <utility>

namespace muster::kernels {

ThreadTeam::ThreadTeam(int members) {
  for (int member = 1; member < members; ++member) {
    threads_.emplace_back([this, member] { serve(member); });
  }
}

ThreadTeam::~ThreadTeam() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) {
    thread.join();
  }
}

void ThreadTeam::run(std::int64_t tasks, const Task& task) {
  if (threads_.empty() || tasks <= 1) {
    for (std::int64_t i = 0; i < tasks; ++i) {
      task(i, 0);
    }
    return;
  }
  std::unique_lock lock(mutex_);
  task_ = &task;
  tasks_ = tasks;
  next_ = 0;
  unfinished_ = tasks;
  changed_.notify_all();
  work(lock, 0);
  changed_.wait(lock, [this] { return unfinished_ == 0; });
  task_ = nullptr;
  if (const std::exception_ptr failure = std::exchange(failure_, nullptr)) {
    lock.unlock();
    std::rethrow_exception(failure);
  }
}

void ThreadTeam::work(std::unique_lock<std::mutex>& lock, int member) {
  while (next_ < tasks_) {
    const std::int64_t number = next_++;
    const Task& task = *task_;
    lock.unlock();
    std::exception_ptr failure;
    try {
      task(number, member);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    if (failure_ == nullptr) {
      failure_ = failure;
    }
    if (--unfinished_ == 0) {
      tasks_ = 0;
      next_ = 0;
      changed_.notify_all();
    }
  }
}

void ThreadTeam::serve(int member) {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    work(lock, member);
    changed_.wait(lock, [this] { return stopping_ || next_ < tasks_; });
  }
}

}  // namespace muster::kernels
