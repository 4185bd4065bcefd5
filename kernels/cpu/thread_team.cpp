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
    const MutexLock lock{mutex_};
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
  MutexLock lock{mutex_};
  task_ = &task;
  tasks_ = tasks;
  next_ = 0;
  unfinished_ = tasks;
  changed_.notify_all();
  work(0);
  while (unfinished_ > 0) {
    changed_.wait(mutex_);
  }
  task_ = nullptr;
  if (const std::exception_ptr failure = std::exchange(failure_, nullptr)) {
    lock.unlock();
    std::rethrow_exception(failure);
  }
}

void ThreadTeam::work(int member) {
  while (next_ < tasks_) {
    const std::int64_t number = next_++;
    const Task& task = *task_;
    mutex_.unlock();
    std::exception_ptr failure;
    try {
      task(number, member);
    } catch (...) {
      failure = std::current_exception();
    }
    mutex_.lock();
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
  const MutexLock lock{mutex_};
  while (!stopping_) {
    work(member);
    while (!stopping_ && next_ == tasks_) {
      changed_.wait(mutex_);
    }
  }
}

}  // namespace muster::kernels
