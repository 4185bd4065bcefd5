// SPDX-License-Identifier: Apache-2.0
#include "optimizer/src/storage/comm_thread.h"

#include <algorithm>
#include <string>
#include <utility>

namespace muster::optimizer {

CommThread::CommThread(std::function<void(std::string_view)> abort)
    : abort_(std::move(abort)), thread_([this] { loop(); }) {}

CommThread::~CommThread() {
  bool endless = false;
  {
    const std::lock_guard lock{mutex_};
    stopping_ = true;
    endless = failure_.ok() &&
              std::any_of(jobs_.begin(), jobs_.end(), [](const Job& job) { return !job.bounded; });
  }
  work_.notify_all();
  if (endless) {
    abort_("the optimizer ended while gradients were being reduced");
  }
  thread_.join();
}

std::uint64_t CommThread::submit(bool bounded, std::function<Status()> job) {
  std::uint64_t ticket = 0;
  {
    const std::lock_guard lock{mutex_};
    jobs_.push_back({bounded, std::move(job)});
    ticket = ++submitted_;
  }
  work_.notify_one();
  return ticket;
}

Status CommThread::wait(std::uint64_t ticket, Deadline deadline) {
  std::unique_lock lock{mutex_};
  const auto arrived = [&] { return finished_ >= ticket || !failure_.ok(); };
  if (deadline.at == MonotonicTime::max()) {
    done_.wait(lock, arrived);
    return failure_;
  }
  if (done_.wait_until(lock, deadline.at, arrived)) {
    return failure_;
  }
  const std::uint64_t missing = ticket - finished_;
  lock.unlock();
  abort_("a bucket of the optimizer did not arrive in time");
  lock.lock();
  done_.wait(lock, arrived);
  return deadline_exceeded(
      std::to_string(missing) +
      " buckets did not complete in time: a rank is slow, stopped or did not report its gradients");
}

void CommThread::loop() {
  std::unique_lock lock{mutex_};
  while (true) {
    work_.wait(lock, [&] { return stopping_ || !jobs_.empty(); });
    if (jobs_.empty()) {
      return;
    }
    if (failure_.ok()) {
      // The deque's elements stay where they are while others are appended.
      const std::function<Status()>& run = jobs_.front().run;
      lock.unlock();
      Status status = run();
      lock.lock();
      failure_ = std::move(status);
    }
    jobs_.pop_front();
    ++finished_;
    done_.notify_all();
  }
}

}  // namespace muster::optimizer
