// SPDX-License-Identifier: Apache-2.0
#include "comm/src/heap/heap.h"

#include <muster/comm/agree.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <utility>

namespace muster::comm {

namespace {

constexpr std::string_view kSealPhase = "seal of the symmetric heap";
constexpr std::size_t kNamedMax = 8;  // Ranks that one message describes.

std::int64_t monotonic_ns() {
  // The clock of the machine: ranks compare their times, so all must read the same one.
  const auto now = Clock::system().now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

std::string quote(std::string_view text) {
  return "'" + std::string{text} + "'";
}

}  // namespace

// Names the phase that a rank has not reached, and the last one in which it was seen.
class GroupHeap::PhaseMeeting final : public Meeting {
 public:
  PhaseMeeting(const GroupHeap& heap, std::string_view phase) : heap_(heap), phase_(phase) {}

  [[nodiscard]] std::string has_left(std::size_t r) const override {
    return heap_.slot(r).left.load() != 0 ? heap_.name(r) + " has destroyed its symmetric heap"
                                          : std::string{};
  }

  [[nodiscard]] std::string gone(
      std::size_t r, const std::string& gone, bool arrived) const override {
    if (arrived) {
      return gone + "; it was last seen at the barrier of " + quote(phase_);
    }
    return gone + "; it has not reached " + quote(phase_) + "; " + last_seen(r);
  }

  [[nodiscard]] std::string late(std::span<const Late> ranks) const override {
    std::string text;
    for (const Late& rank : ranks.first(std::min(ranks.size(), kNamedMax))) {
      text += (text.empty() ? "" : "; ") + rank.name + " has not reached " + quote(phase_) + "; " +
              last_seen(rank.r);
    }
    if (ranks.size() > kNamedMax) {
      text += concat("; and ", ranks.size() - kNamedMax, " more ranks have not");
    }
    return text.empty() ? "a peer has not reached " + quote(phase_) : text;
  }

 private:
  [[nodiscard]] std::string last_seen(std::size_t r) const {
    const HeapSlot& slot = heap_.slot(r);
    const std::uint32_t last = slot.last.load(std::memory_order_acquire);
    const std::string text =
        last == 0 ? "it has not been at any barrier of this heap"
                  : "it was last seen in " + quote(slot.arrivals[last - 1].phase.load());
    return heap_.is_in_collective(r) ? text + " and is inside a collective of the communicator"
                                     : text;
  }

  const GroupHeap& heap_;
  std::string_view phase_;
};

GroupHeap::GroupHeap(Parts parts)
    : SymmetricHeap(Region{
          parts.rank,
          static_cast<int>(parts.members.size()),
          parts.pages->base(),
          parts.pages->stride()}),
      parts_(std::move(parts)),
      barrier_(parts_.session, parts_.group, parts_.rank, parts_.members) {}

GroupHeap::~GroupHeap() {
  HeapControl& control = parts_.pages->control();
  control.slots[parts_.rank].left.store(1);
  if (control.left_count.fetch_add(1) + 1 == parts_.members.size()) {
    parts_.pages->give_back();
  }
  parts_.session->block().group_members[parts_.group].fetch_sub(1);
}

bool GroupHeap::is_in_collective(std::size_t r) const {
  return parts_.session->block().groups[parts_.parent].slots[r].in_call.load() != 0;
}

std::string GroupHeap::name(std::size_t r) const {
  return parts_.session->name(parts_.members[r]);
}

// --- allocation ---

Expected<std::size_t> GroupHeap::allocate(std::size_t bytes, std::size_t alignment) {
  if (!std::has_single_bit(alignment) || alignment > kSymmetricGranularity) {
    return invalid_argument(
        "symmetric heap: alignment must be a power of two up to ",
        kSymmetricGranularity,
        ", got ",
        alignment);
  }
  // The stride is a multiple of every alignment, so `begin` is at most the stride.
  const std::size_t begin = (used_ + alignment - 1) / alignment * alignment;
  if (bytes > stride() - begin) {
    return resource_exhausted(
        "symmetric heap: ",
        bytes,
        " bytes wanted, ",
        stride() - begin,
        " left of ",
        stride(),
        "; create it with more bytes per rank");
  }
  used_ = begin + bytes;
  allocation_hash_ = mix(mix(allocation_hash_, bytes), alignment);
  ++allocation_count_;
  return begin;
}

Status GroupHeap::seal(Deadline deadline) {
  MUSTER_RETURN_IF_ERROR(meet(kSealPhase, deadline));
  std::vector<std::uint64_t> hashes;
  for (std::size_t r = 0; r < parts_.members.size(); ++r) {
    hashes.push_back(arrival(r).allocation_hash.load());
  }
  const Dissent dissent = find_dissent(hashes);
  if (dissent.ranks.empty()) {
    return {};
  }
  std::string text;
  for (const std::size_t r :
       std::span{dissent.ranks}.first(std::min(dissent.ranks.size(), kNamedMax))) {
    text += (text.empty() ? "" : ", ") + describe_allocations(r);
  }
  return parts_.session->fail(invalid_argument(
      "allocations in the symmetric heap differ: ",
      text,
      ", but ",
      describe_allocations(dissent.model),
      "; all ranks must ask for the same sizes and alignments in the same order"));
}

std::string GroupHeap::describe_allocations(std::size_t r) const {
  return concat(
      name(r),
      " made ",
      arrival(r).allocation_count.load(),
      " allocations up to offset ",
      arrival(r).allocation_bytes.load());
}

// --- views ---

Expected<std::span<std::byte>> GroupHeap::map_view(std::span<const Piece> pieces) {
  std::size_t bytes = 0;
  for (std::size_t p = 0; p < pieces.size(); ++p) {
    const Piece& piece = pieces[p];
    const auto refuse = [&](const auto&... why) {
      return invalid_argument(
          "view of the symmetric heap: piece ",
          p,
          " (rank ",
          piece.peer,
          ", offset ",
          piece.offset,
          ", ",
          piece.bytes,
          " bytes) ",
          why...);
    };
    if (piece.peer < 0 || piece.peer >= size()) {
      return refuse("must name a rank of this group of ", size());
    }
    if (piece.bytes == 0 || piece.bytes % kSymmetricGranularity != 0 ||
        piece.offset % kSymmetricGranularity != 0) {
      return refuse("must consist of whole pages of ", kSymmetricGranularity, " bytes");
    }
    if (piece.offset > stride() || piece.bytes > stride() - piece.offset) {
      return refuse("must end within the chunk of ", stride(), " bytes");
    }
    bytes += piece.bytes;
  }
  if (pieces.empty()) {
    return invalid_argument("view of the symmetric heap: there are no pieces");
  }
  MUSTER_ASSIGN_OR_RETURN(Mapping view, parts_.pages->map_view(pieces));
  views_.push_back(std::move(view));
  return std::span{views_.back().begin(), bytes};
}

// --- barrier ---

Status GroupHeap::barrier(
    std::string_view phase, Deadline deadline, std::span<std::int64_t> waited) {
  if (!waited.empty() && waited.size() != parts_.members.size()) {
    return parts_.session->fail(invalid_argument(
        "barrier of ",
        quote(phase),
        ": waited must have one entry for each of ",
        size(),
        " ranks, got ",
        waited.size(),
        " on ",
        parts_.session->name(parts_.session->rank())));
  }
  MUSTER_RETURN_IF_ERROR(meet(phase, deadline));
  const std::int64_t own = arrival(static_cast<std::size_t>(rank())).at_ns.load();
  for (std::size_t r = 0; r < waited.size(); ++r) {
    waited[r] += std::max<std::int64_t>(0, arrival(r).at_ns.load() - own);
  }
  return {};
}

Status GroupHeap::meet(std::string_view phase, Deadline deadline) {
  constexpr auto kRelaxed = std::memory_order_relaxed;  // The barrier orders them.
  ++barrier_count_;
  HeapSlot& own = slot(static_cast<std::size_t>(rank()));
  HeapArrival& now = own.arrivals[barrier_count_ % 2];
  now.phase.store(phase);
  now.phase_hash.store(hash_of(phase), kRelaxed);
  now.allocation_hash.store(allocation_hash_, kRelaxed);
  now.allocation_count.store(allocation_count_, kRelaxed);
  now.allocation_bytes.store(used_, kRelaxed);
  now.at_ns.store(monotonic_ns(), kRelaxed);
  own.last.store(static_cast<std::uint32_t>(1 + barrier_count_ % 2), std::memory_order_release);
  MUSTER_RETURN_IF_ERROR(barrier_.arrive_and_wait(deadline, PhaseMeeting{*this, phase}));
  return check_phases(phase);
}

Status GroupHeap::check_phases(std::string_view phase) const {
  const std::uint64_t own = hash_of(phase);
  for (std::size_t r = 0; r < parts_.members.size(); ++r) {
    if (arrival(r).phase_hash.load(std::memory_order_relaxed) == own) {
      continue;
    }
    // Every rank compares with rank 0, so that all report the same.
    std::size_t odd = 1;
    while (odd + 1 < parts_.members.size() &&
           arrival(odd).phase_hash.load() == arrival(0).phase_hash.load()) {
      ++odd;
    }
    return parts_.session->fail(invalid_argument(
        "ranks disagree: " + name(0) + " is at the barrier of " + quote(arrival(0).phase.load()) +
        ", " + name(odd) + " at that of " + quote(arrival(odd).phase.load()) +
        "; all ranks must go through the same phases in the same order"));
  }
  return {};
}

}  // namespace muster::comm
