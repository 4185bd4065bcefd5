// SPDX-License-Identifier: Apache-2.0
// A thread that runs jobs in submission order, for collectives that overlap with computation on the
// training thread.
//
// Thread-safety: one thread submits and waits. Writes of a job are visible after its wait.
#pragma once

#include <muster/common/clock.h>
#include <muster/common/mutex.h>
#include <muster/common/status.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <string_view>
#include <thread>

namespace muster::optimizer {

class CommThread {
 public:
  // `abort` unblocks a job that waits for other ranks. It is called from another thread than the
  // job's, and every later job must fail after it.
  explicit CommThread(std::function<void(std::string_view reason)> abort);
  // Waits for jobs submitted as `bounded`, which end by themselves, and aborts the others.
  ~CommThread();
  CommThread(const CommThread&) = delete;
  CommThread& operator=(const CommThread&) = delete;
  CommThread(CommThread&&) = delete;
  CommThread& operator=(CommThread&&) = delete;

  // Returns the job's ticket, starting at 1. After a job has failed, later ones are not run.
  // `bounded` jobs have a deadline.
  std::uint64_t submit(bool bounded, std::function<Status()> job);

  // Blocks until the job of `ticket` and all before it are done. Returns the first error of any
  // job, on this and every later call; kDeadlineExceeded when they are not done in time, after
  // aborting them.
  [[nodiscard]] Status wait(std::uint64_t ticket, Deadline deadline);

 private:
  struct Job {
    bool bounded;
    std::function<Status()> run;
  };

  void loop();

  // True once the job of `ticket` is done or a job has failed.
  [[nodiscard]] bool arrived(std::uint64_t ticket) const MUSTER_REQUIRES(mutex_) {
    return finished_ >= ticket || !failure_.ok();
  }

  std::function<void(std::string_view)> abort_;
  Mutex mutex_;
  CondVar work_;                                    // A job was submitted, or the thread must stop.
  CondVar done_;                                    // A job has ended.
  std::deque<Job> jobs_ MUSTER_GUARDED_BY(mutex_);  // Including the running one.
  std::uint64_t submitted_ MUSTER_GUARDED_BY(mutex_){0};
  std::uint64_t finished_ MUSTER_GUARDED_BY(mutex_){0};
  Status failure_ MUSTER_GUARDED_BY(mutex_);
  bool stopping_ MUSTER_GUARDED_BY(mutex_){false};
  std::thread thread_;
};

}  // namespace muster::optimizer
