// SPDX-License-Identifier: Apache-2.0
#include "comm/src/group/session.h"

#include "comm/src/group/futex.h"

#include <algorithm>
#include <cstring>
#include <thread>

namespace muster::comm {

Session::Session(Parts parts) : parts_(std::move(parts)), watch_(parts_.size) {
  MemberBlock& self = block().members[parts_.rank];
  self.pid.store(parts_.pid);
  self.state.store(MemberState::kJoined);
}

Session::~Session() {
  block().members[parts_.rank].state.store(MemberState::kLeft);
}

std::byte* Session::staging(std::size_t group, int rank) const {
  const auto size = static_cast<std::size_t>(parts_.size);
  return parts_.staging + (group * size + static_cast<std::size_t>(rank)) * kStagingBytes;
}

void Session::abort(const Status& reason) {
  SessionBlock& shared = block();
  AbortState expected = AbortState::kNone;
  if (shared.abort_state.compare_exchange_strong(expected, AbortState::kWriting)) {
    const std::size_t length = std::min(reason.message().size(), kReasonBytes - 1);
    std::memcpy(shared.abort_reason, reason.message().data(), length);
    shared.abort_code = static_cast<std::uint32_t>(reason.code());
    shared.abort_state.store(AbortState::kWritten);
  }
  for (GroupBlock& group : shared.groups) {
    group.epoch.fetch_or(1);
    futex_wake_all(group.epoch);
  }
}

Status Session::fail(const Status& error) {
  abort(error);
  return failure();
}

bool Session::aborted() const {
  return parts_.block->abort_state.load() != AbortState::kNone;
}

Status Session::first_error() const {
  // The writer needs microseconds, unless it was killed in between.
  for (int i = 0; i < 1000; ++i) {
    if (parts_.block->abort_state.load() == AbortState::kWritten) {
      const auto code = static_cast<StatusCode>(parts_.block->abort_code);
      return Status{code, parts_.block->abort_reason};
    }
    std::this_thread::yield();
  }
  return muster::aborted("a peer aborted and died before it could report the reason");
}

Status Session::failure() {
  const Status first = first_error();
  return reported_.exchange(true) ? muster::aborted(first.message()) : first;
}

std::string Session::name(int rank) const {
  const std::int32_t pid = parts_.block->members[rank].pid.load();
  return pid == 0 ? concat("rank ", rank) : concat("rank ", rank, " (pid ", pid, ")");
}

std::string Session::name_with_state(int rank) const {
  const MemberBlock& member = parts_.block->members[rank];
  if (member.state.load() == MemberState::kAbsent) {
    return concat("rank ", rank, " (never joined)");
  }
  const std::int32_t pid = member.pid.load();
  return pid == 0 ? concat("rank ", rank)
                  : concat("rank ", rank, " (pid ", pid, ", ", process_state(pid), ")");
}

std::string Session::gone(int rank) {
  const MemberBlock& member = block().members[rank];
  if (member.state.load() == MemberState::kLeft) {
    return name(rank) + " has left";
  }
  const std::int32_t pid = member.pid.load();
  if (pid == 0 || rank == parts_.rank || !watch_.is_dead(rank, pid)) {
    return {};
  }
  return name(rank) + " is dead";
}

}  // namespace muster::comm
