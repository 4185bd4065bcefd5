// SPDX-License-Identifier: Apache-2.0
// A few threads that share the work of one call.
#pragma once

#include <muster/common/mutex.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

namespace muster::kernels {

// Thread-safety: run() from one thread at a time. With one member there are no other threads and
// run() is a loop. Which member does which task is not determined; tasks must not care.
class ThreadTeam {
 public:
  // task number, member number (the caller is member 0)
  using Task = std::function<void(std::int64_t, int)>;

  explicit ThreadTeam(int members);
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;
  ThreadTeam(ThreadTeam&&) = delete;
  ThreadTeam& operator=(ThreadTeam&&) = delete;

  [[nodiscard]] int members() const { return static_cast<int>(threads_.size()) + 1; }

  // task(0 ... tasks - 1), each once, taken in this order; returns when all are done. Throws what a
  // task threw (the first of them), after the others have run.
  void run(std::int64_t tasks, const Task& task);

 private:
  void serve(int member);
  // Runs tasks until none is left, without mutex_ during a task.
  void work(int member) MUSTER_REQUIRES(mutex_);

  Mutex mutex_;
  CondVar changed_;  // There is work, or none is left.
  const Task* task_ MUSTER_GUARDED_BY(mutex_){nullptr};
  std::int64_t tasks_ MUSTER_GUARDED_BY(mutex_){0};
  std::int64_t next_ MUSTER_GUARDED_BY(mutex_){0};
  std::int64_t unfinished_ MUSTER_GUARDED_BY(mutex_){0};
  std::exception_ptr failure_ MUSTER_GUARDED_BY(mutex_);
  bool stopping_ MUSTER_GUARDED_BY(mutex_){false};
  std::vector<std::thread> threads_;
};

}  // namespace muster::kernels
