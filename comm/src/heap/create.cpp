// SPDX-License-Identifier: Apache-2.0
#include "comm/src/group/communicator.h"
#include "comm/src/heap/heap.h"

#include <utility>

namespace muster::comm {

namespace {

// More than the address space of a process on any machine we know.
constexpr std::size_t kHeapBytesMax = std::size_t{1} << 47;

}  // namespace

Expected<std::unique_ptr<SymmetricHeap>> SymmetricHeap::create(
    Communicator& ranks, std::size_t bytes, Deadline deadline) {
  auto* group = dynamic_cast<GroupCommunicator*>(&ranks);
  if (group == nullptr) {
    return unimplemented(
        "a symmetric heap needs ranks that share memory, but these are connected by \"",
        ranks.backend(),
        "\"; put the group on one host and connect it with shm (MUSTER_COMM=shm), or exchange by "
        "all-to-all");
  }
  return group->create_heap(bytes, deadline);
}

// A rank that cannot continue aborts the session, so that all ranks return its reason.
Status GroupCommunicator::refuse_heap(Status error) {
  return leave(
      session_->fail(error.context("symmetric heap on " + session_->name(session_->rank()))));
}

Expected<std::unique_ptr<SymmetricHeap>> GroupCommunicator::create_heap(
    std::size_t bytes, Deadline deadline) {
  const Presence presence{*this};
  MUSTER_RETURN_IF_ERROR(presence.admission());
  CallRecord& own = begin(CallKind::kSymmetricHeap);
  own.count = bytes;
  MUSTER_RETURN_IF_ERROR(enter(deadline));
  if (bytes == 0) {
    return refuse_heap(invalid_argument("chunks of 0 bytes; ask for at least one"));
  }
  if (bytes > kHeapBytesMax / size_) {
    return refuse_heap(resource_exhausted(
        size_, " chunks of ", bytes, " bytes do not fit into any address space; ask for less"));
  }
  HeapShape shape;
  shape.ranks = size_;
  shape.stride =
      (bytes + kSymmetricGranularity - 1) / kSymmetricGranularity * kSymmetricGranularity;

  // The leader takes a group for the heap's own barrier and the pages, and publishes their place.
  // Threads share its mapping until the last of them releases it.
  std::shared_ptr<HeapPages> pages;
  HeapFile file{session_->file(), 0};
  if (rank_ == 0) {
    own.result = claim_group(size_);
    if (own.result == kGroupMax) {
      return refuse_heap(resource_exhausted(
          "all ",
          kGroupMax,
          " groups of this session are in use; destroy sub-communicators and heaps that are no "
          "longer needed"));
    }
    auto claimed = claim_heap_file(*session_, shape);
    if (!claimed) {
      return refuse_heap(claimed.status());
    }
    file = std::move(*claimed);
    own.offset = file.begin;
    if (session_->ranks_are_threads()) {
      auto mapped = HeapPages::map(file, shape);
      if (!mapped) {
        return refuse_heap(mapped.status());
      }
      pages = std::move(*mapped);
      own.offset = reinterpret_cast<std::uintptr_t>(&pages);
    }
  }
  MUSTER_RETURN_IF_ERROR(synchronize(deadline));
  const CallRecord& leader = record(0);
  if (!session_->ranks_are_threads()) {
    file.begin = leader.offset;
    auto mapped = HeapPages::map(std::move(file), shape);
    if (!mapped) {
      return refuse_heap(mapped.status());
    }
    pages = std::move(*mapped);
  } else if (rank_ != 0) {
    pages = *reinterpret_cast<const std::shared_ptr<HeapPages>*>(leader.offset);  // NOLINT
  }
  // No rank uses or releases the heap before all ranks have it.
  MUSTER_RETURN_IF_ERROR(synchronize(deadline));
  GroupHeap::Parts parts;
  parts.session = session_;
  parts.parent = group_;
  parts.group = leader.result;
  parts.rank = rank_;
  parts.members = barrier_.members();
  parts.pages = std::move(pages);
  return std::unique_ptr<SymmetricHeap>{std::make_unique<GroupHeap>(std::move(parts))};
}

}  // namespace muster::comm
