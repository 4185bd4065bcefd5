#include "comm/src/group/communicator.h"

#include <algorithm>

namespace muster::comm {

// kGroupMax when all are taken.
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
        "split: all " + std::to_string(kGroupMax) +
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

}  // namespace muster::comm
