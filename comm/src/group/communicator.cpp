// SPDX-License-Identifier: Apache-2.0
#include "comm/src/group/communicator.h"

#include <algorithm>
#include <cstring>
#include <thread>

namespace muster::comm {

namespace {

class CallMeeting final : public Meeting {
 public:
  explicit CallMeeting(const CallName& call) : call_(call) {}

  [[nodiscard]] std::string gone(
      [[maybe_unused]] std::size_t r,
      const std::string& gone,
      [[maybe_unused]] bool arrived) const override {
    return gone + "; it did not arrive at " + to_string(call_);
  }

  [[nodiscard]] std::string late(std::span<const Late> ranks) const override {
    std::string text;
    for (const Late& rank : ranks) {
      text += (text.empty() ? "" : ", ") + rank.name;
    }
    return (text.empty() ? "a peer" : text) + " did not arrive at " + to_string(call_) + " in time";
  }

 private:
  CallName call_;
};

}  // namespace

GroupCommunicator::GroupCommunicator(
    std::shared_ptr<Session> session, std::size_t group, int rank, std::vector<int> members)
    : session_(std::move(session)),
      group_(group),
      rank_(rank),
      size_(members.size()),
      barrier_(session_, group, rank, std::move(members)) {}

GroupCommunicator::~GroupCommunicator() {
  for (std::byte* memory : allocations_) {
    session_->heap().free(memory);
  }
  session_->block().group_members[group_].fetch_sub(1);
}

GroupCommunicator::Presence::Presence(GroupCommunicator& owner) : owner_(owner) {
  // In this order, both sequentially consistent: either we see the abort, or the rank that leaves
  // because of it sees us and waits.
  owner_.own_slot().in_call.store(1);
  admitted_ = !owner_.session_->aborted();
}

GroupCommunicator::Presence::~Presence() {
  owner_.own_slot().in_call.store(0, std::memory_order_release);
}

Status GroupCommunicator::Presence::admission() const {
  return admitted_ ? Status{} : owner_.session_->failure();
}

// Threads read each other's private buffers, so a thread that leaves a call by an error, after
// which its caller may free the buffers, first lets the others get out of them. They do soon: the
// abort has freed all waiters. Processes need no such wait, the shared mapping stays.
Status GroupCommunicator::leave(Status error) {
  own_slot().in_call.store(0, std::memory_order_release);
  if (session_->ranks_are_threads()) {
    for (std::size_t r = 0; r < size_; ++r) {
      while (barrier_.block().slots[r].in_call.load() != 0) {
        std::this_thread::yield();
      }
    }
  }
  return error;
}

CallRecord& GroupCommunicator::begin(CallKind kind) {
  ++call_count_;
  CallRecord& call = own_slot().records[call_count_ % 2];
  call.index = call_count_;
  call.kind = kind;
  call.placement = Placement::kInline;
  call.refused = 0;
  call.root = 0;
  call.count = 0;
  return call;
}

void GroupCommunicator::place(CallRecord& call, const void* data, std::size_t bytes) const {
  if (bytes <= kInlineBytes) {
    call.placement = Placement::kInline;
    if (bytes > 0) {
      std::memcpy(own_slot().inline_data[call_count_ % 2], data, bytes);
    }
    return;
  }
  const auto offset = session_->heap().offset_of(data, bytes);
  call.placement = offset ? Placement::kDirect : Placement::kStaged;
  call.offset = offset.value_or(0);
}

const CallRecord& GroupCommunicator::record(std::size_t r) const {
  return barrier_.block().slots[r].records[call_count_ % 2];
}

Status GroupCommunicator::synchronize(Deadline deadline) {
  const CallRecord& own = record(static_cast<std::size_t>(rank_));
  Status status = barrier_.arrive_and_wait(deadline, CallMeeting{CallName{own.kind, own.index}});
  return status.ok() ? status : leave(std::move(status));
}

Status GroupCommunicator::enter(Deadline deadline) {
  MUSTER_RETURN_IF_ERROR(synchronize(deadline));
  const CallRecord* calls[kRankMax];
  for (std::size_t r = 0; r < size_; ++r) {
    calls[r] = &record(r);
  }
  const std::span all{calls, size_};
  if (is_agreed(all)) {
    return {};
  }
  return leave(session_->fail(disagreement(all, names())));
}

std::vector<std::string> GroupCommunicator::names() const {
  std::vector<std::string> names;
  for (const int member : barrier_.members()) {
    names.push_back(session_->name(member));
  }
  return names;
}

Status GroupCommunicator::refuse(std::string_view why) {
  return session_->fail(invalid_argument(why, " on ", session_->name(session_->rank())));
}

bool GroupCommunicator::all_inline() const {
  for (std::size_t r = 0; r < size_; ++r) {
    if (record(r).placement != Placement::kInline) {
      return false;
    }
  }
  return true;
}

bool GroupCommunicator::any_staged() const {
  for (std::size_t r = 0; r < size_; ++r) {
    if (record(r).placement == Placement::kStaged) {
      return true;
    }
  }
  return false;
}

Status GroupCommunicator::barrier(Deadline deadline) {
  const Presence presence{*this};
  MUSTER_RETURN_IF_ERROR(presence.admission());
  begin(CallKind::kBarrier);
  return enter(deadline);
}

Expected<std::span<std::byte>> GroupCommunicator::allocate_bytes(
    std::size_t size, Deadline deadline) {
  const Presence presence{*this};
  MUSTER_RETURN_IF_ERROR(presence.admission());
  CallRecord& call = begin(CallKind::kAllocate);
  call.count = size;
  auto memory = session_->heap().allocate(std::max<std::size_t>(size, 1));
  call.refused = memory.ok() ? 0 : 1;
  if (memory.ok()) {
    allocations_.push_back(*memory);
  }
  MUSTER_RETURN_IF_ERROR(enter(deadline));
  if (!memory.ok()) {
    return session_->fail(memory.status().context(session_->name(session_->rank())));
  }
  for (std::size_t r = 0; r < size_; ++r) {
    if (record(r).refused != 0) {
      return session_->fail(resource_exhausted(
          session_->name(barrier_.members()[r]),
          " has no room for ",
          record(r).count,
          " bytes; raise heap_bytes_per_rank"));
    }
  }
  return std::span<std::byte>{*memory, size};
}

// --- sub-communicators ---

// Returns kGroupMax if all are taken.
std::size_t GroupCommunicator::claim_group(std::size_t member_count) {
  for (std::size_t group = 0; group < kGroupMax; ++group) {
    std::uint32_t free = 0;
    if (session_->block().group_members[group].compare_exchange_strong(
            free, static_cast<std::uint32_t>(member_count))) {
      return group;
    }
  }
  return kGroupMax;
}

Expected<std::unique_ptr<Communicator>> GroupCommunicator::split(
    int color, int key, Deadline deadline) {
  const Presence presence{*this};
  MUSTER_RETURN_IF_ERROR(presence.admission());
  CallRecord& own = begin(CallKind::kSplit);
  own.root = color;
  own.key = key;
  MUSTER_RETURN_IF_ERROR(enter(deadline));
  std::vector<std::size_t> chosen;
  for (std::size_t r = 0; r < size_; ++r) {
    if (record(r).root == color) {
      chosen.push_back(r);
    }
  }
  std::stable_sort(chosen.begin(), chosen.end(), [&](std::size_t a, std::size_t b) {
    return record(a).key < record(b).key;
  });
  const std::size_t leader = chosen.front();
  const auto self = static_cast<std::size_t>(rank_);
  if (leader == self) {
    own.result = claim_group(chosen.size());
  }
  MUSTER_RETURN_IF_ERROR(synchronize(deadline));
  const std::size_t group = record(leader).result;
  if (group == kGroupMax) {
    return session_->fail(resource_exhausted(
        "split: all ",
        kGroupMax,
        " groups of this session are in use; destroy sub-communicators that are no longer needed"));
  }
  const auto position = std::find(chosen.begin(), chosen.end(), self) - chosen.begin();
  std::vector<int> members;
  members.reserve(chosen.size());
  for (const std::size_t r : chosen) {
    members.push_back(barrier_.members()[r]);
  }
  return std::unique_ptr<Communicator>{std::make_unique<GroupCommunicator>(
      session_, group, static_cast<int>(position), std::move(members))};
}

void GroupCommunicator::abort(std::string_view reason) {
  session_->abort(muster::aborted(std::string{reason}));
}

}  // namespace muster::comm
