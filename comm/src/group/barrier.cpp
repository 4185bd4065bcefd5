// SPDX-License-Identifier: Apache-2.0
#include "comm/src/group/barrier.h"

#include "comm/src/group/futex.h"

#include <algorithm>
#include <thread>

namespace muster::comm {

namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

// The time a waiter sleeps before it checks that its peers are alive.
constexpr nanoseconds kSlice = milliseconds{20};
constexpr std::uint32_t kAborted = 1;
constexpr std::uint32_t kOneEpoch = 2;

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::atomic_signal_fence(std::memory_order_seq_cst);
#endif
}

bool completed(std::uint32_t now, std::uint32_t epoch) {
  return ((now ^ epoch) & ~kAborted) != 0;
}

}  // namespace

Barrier::Barrier(
    std::shared_ptr<Session> session, std::size_t group, int rank, std::vector<int> members)
    : session_(std::move(session)),
      block_(&session_->block().groups[group]),
      rank_(rank),
      members_(std::move(members)) {
  // With a core for each rank a peer arrives while we spin. With fewer, it can only arrive when we
  // give up our core.
  const bool has_cores = members_.size() <= std::max(1U, std::thread::hardware_concurrency());
  pause_count_ = has_cores ? 300 : 20;
  yield_count_ = has_cores ? 2 : 8;
}

Status Barrier::arrive_and_wait(Deadline deadline, const Meeting& meeting) {
  const std::uint32_t epoch = block_->epoch.load(std::memory_order_acquire);
  if ((epoch & kAborted) != 0) {
    return session_->failure();
  }
  block_->slots[rank_].arrived_for.store(epoch + kOneEpoch, std::memory_order_release);
  if (block_->arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == members_.size()) {
    block_->arrived.store(0, std::memory_order_relaxed);
    block_->epoch.fetch_add(kOneEpoch);
    // Sequentially consistent with the sleeper's own pair: one of both sees the other.
    if (block_->sleepers.load() > 0) {
      futex_wake_all(block_->epoch);
    }
    return {};
  }
  return spin(epoch) ? Status{} : sleep(epoch, deadline, meeting);
}

bool Barrier::spin(std::uint32_t epoch) const {
  for (int i = 0; i < pause_count_; ++i) {
    if (completed(block_->epoch.load(std::memory_order_acquire), epoch)) {
      return true;
    }
    pause_briefly();
  }
  for (int i = 0; i < yield_count_; ++i) {
    if (completed(block_->epoch.load(std::memory_order_acquire), epoch)) {
      return true;
    }
    std::this_thread::yield();
  }
  return false;
}

Status Barrier::sleep(std::uint32_t epoch, Deadline deadline, const Meeting& meeting) {
  while (true) {
    block_->sleepers.fetch_add(1);
    const std::uint32_t now = block_->epoch.load();
    if (now == epoch) {
      futex_wait(block_->epoch, epoch, std::min(kSlice, deadline.remaining()));
    }
    block_->sleepers.fetch_sub(1);
    const std::uint32_t woken = block_->epoch.load(std::memory_order_acquire);
    // Completion first: a rank that has met all peers continues, and sees the abort at its next
    // call.
    if (completed(woken, epoch)) {
      return {};
    }
    if ((woken & kAborted) != 0) {
      return session_->failure();
    }
    if (Status verdict = judge(epoch, deadline, meeting); !verdict.ok()) {
      return session_->fail(verdict);
    }
  }
}

Status Barrier::judge(std::uint32_t epoch, Deadline deadline, const Meeting& meeting) {
  std::string gone;
  std::size_t who = 0;
  for (std::size_t r = 0; r < members_.size() && gone.empty(); ++r) {
    gone = session_->gone(members_[r]);
    if (gone.empty()) {
      gone = meeting.has_left(r);
    }
    who = r;
  }
  if (gone.empty() && !deadline.expired()) {
    return {};
  }
  Status verdict = gone.empty() ? deadline_exceeded(describe_late(epoch, meeting))
                                : unavailable(meeting.gone(who, gone, has_arrived(who, epoch)));
  // No rank leaves a synchronization before it is complete, so a rank that is gone will never
  // arrive; but it may have completed while we looked.
  return completed(block_->epoch.load(std::memory_order_acquire), epoch) ? Status{} : verdict;
}

bool Barrier::has_arrived(std::size_t r, std::uint32_t epoch) const {
  return block_->slots[r].arrived_for.load(std::memory_order_acquire) == epoch + kOneEpoch;
}

std::string Barrier::describe_late(std::uint32_t epoch, const Meeting& meeting) const {
  std::vector<Meeting::Late> late;
  for (std::size_t r = 0; r < members_.size(); ++r) {
    if (!has_arrived(r, epoch)) {
      late.push_back({r, session_->name_with_state(members_[r])});
    }
  }
  return meeting.late(late);
}

}  // namespace muster::comm
