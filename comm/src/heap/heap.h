// SPDX-License-Identifier: Apache-2.0
// The symmetric heap of ranks that share memory: threads and processes of one host.
#pragma once

#include "comm/src/group/barrier.h"
#include "comm/src/group/session.h"
#include "comm/src/heap/pages.h"

#include <muster/comm/symmetric_heap.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace muster::comm {

class GroupHeap final : public SymmetricHeap {
 public:
  struct Parts {
    std::shared_ptr<Session> session;
    std::size_t parent{0};             // Index of the communicator in SessionBlock::groups.
    std::size_t group{0};              // Claimed for this heap alone.
    int rank{0};                       // In the group.
    std::vector<int> members;          // World ranks.
    std::shared_ptr<HeapPages> pages;  // The same object for all ranks that are threads.
  };

  explicit GroupHeap(Parts parts);
  ~GroupHeap() override;
  GroupHeap(const GroupHeap&) = delete;
  GroupHeap& operator=(const GroupHeap&) = delete;
  GroupHeap(GroupHeap&&) = delete;
  GroupHeap& operator=(GroupHeap&&) = delete;

  // For tests.
  [[nodiscard]] const HeapControl& control() const { return parts_.pages->control(); }

  [[nodiscard]] GroupBlock& meeting_place() const { return barrier_.block(); }

  [[nodiscard]] Expected<std::size_t> allocate(std::size_t bytes, std::size_t alignment) override;
  [[nodiscard]] Status seal(Deadline deadline) override;
  [[nodiscard]] Expected<std::span<std::byte>> map_view(std::span<const Piece> pieces) override;
  [[nodiscard]] Status barrier(
      std::string_view phase, Deadline deadline, std::span<std::int64_t> waited) override;

 private:
  class PhaseMeeting;

  [[nodiscard]] bool is_in_collective(std::size_t r) const;

  [[nodiscard]] HeapSlot& slot(std::size_t r) const { return parts_.pages->control().slots[r]; }

  // The record of rank r at the last barrier of this rank.
  [[nodiscard]] const HeapArrival& arrival(std::size_t r) const {
    return slot(r).arrivals[barrier_count_ % 2];
  }

  [[nodiscard]] Status meet(std::string_view phase, Deadline deadline);
  [[nodiscard]] Status check_phases(std::string_view phase) const;
  [[nodiscard]] std::string describe_allocations(std::size_t r) const;
  [[nodiscard]] std::string name(std::size_t r) const;

  Parts parts_;
  Barrier barrier_;
  std::uint64_t barrier_count_{0};
  std::size_t used_{0};
  std::uint64_t allocation_hash_{0};
  std::uint64_t allocation_count_{0};
  std::vector<Mapping> views_;
};

}  // namespace muster::comm
