// A thread that runs jobs in the order they were handed in, for collectives that go on while the
// training thread computes.
//
// Thread-safety: one thread hands in and waits. What a job wrote is visible after its wait.
#pragma once

#include <muster/common/clock.h>
#include <muster/common/status.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string_view>
#include <thread>

namespace muster::optimizer {

class Mover {
 public:
  // `abort` frees a job that waits for other ranks; it may be called from another thread than the
  // job's, and every later job must fail after it.
  explicit Mover(std::function<void(std::string_view reason)> abort);
  // Jobs that can end by themselves are waited for: those handed in as `bounded`. Others are
  // aborted.
  ~Mover();
  Mover(const Mover&) = delete;
  Mover& operator=(const Mover&) = delete;
  Mover(Mover&&) = delete;
  Mover& operator=(Mover&&) = delete;

  // Returns the job's ticket: 1 for the first one. After a job has failed the rest are not run.
  // `bounded`: the job has a deadline of its own.
  std::uint64_t submit(bool bounded, std::function<Status()> job);

  // Until the job of `ticket` and all before it are done. The first error of any job, from then on;
  // kDeadlineExceeded when they are not done in time, which aborts them.
  [[nodiscard]] Status wait(std::uint64_t ticket, Deadline deadline);

 private:
  struct Job {
    bool bounded;
    std::function<Status()> run;
  };

  void loop();

  std::function<void(std::string_view)> abort_;
  std::mutex mutex_;
  std::condition_variable work_;  // a job or the end has come
  std::condition_variable done_;  // a job has ended
  std::deque<Job> jobs_;          // the one that runs included
  std::uint64_t submitted_{0};
  std::uint64_t finished_{0};
  Status failure_;
  bool stopping_{false};
  std::thread thread_;
};

}  // namespace muster::optimizer
