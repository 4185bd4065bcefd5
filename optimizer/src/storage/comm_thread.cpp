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
    const MutexLock lock{mutex_};
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
    const MutexLock lock{mutex_};
    jobs_.push_back({bounded, std::move(job)});
    ticket = ++submitted_;
  }
  work_.notify_one();
  return ticket;
}

Status CommThread::wait(std::uint64_t ticket, Deadline deadline) {
  MutexLock lock{mutex_};
  const bool endless = deadline.at == MonotonicTime::max();
  while (!arrived(ticket) && (endless || !deadline.expired())) {
    if (endless) {
      done_.wait(mutex_);
    } else {
      static_cast<void>(done_.wait_until(mutex_, deadline.at));
    }
  }
  if (arrived(ticket)) {
    return failure_;
  }
  const std::uint64_t missing = ticket - finished_;
  lock.unlock();
  abort_("a bucket of the optimizer did not arrive in time");
  lock.lock();
  while (!arrived(ticket)) {
    done_.wait(mutex_);
  }
  return deadline_exceeded(
      missing,
      " buckets did not complete in time: a rank is slow, stopped or did not report its gradients");
}

void CommThread::loop() {
  MutexLock lock{mutex_};
  while (true) {
    while (!stopping_ && jobs_.empty()) {
      work_.wait(mutex_);
    }
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
