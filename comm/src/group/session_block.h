// SPDX-License-Identifier: Apache-2.0
// The layout of the memory that all ranks of a session see: one mapping for processes, one
// allocation for threads.
//
// The memory starts zeroed, and zero is the initial state of every field; no rank constructs it, so
// there is no moment when one rank resets what another has already written.
#pragma once

#include "comm/src/call_record.h"

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace muster::comm {

inline constexpr std::size_t kGroupMax = 64;  // The world and the sub-groups alive at one time.
inline constexpr std::size_t kReasonBytes = 1024;
inline constexpr std::size_t kStagingBytes = std::size_t{4} << 20;  // Per rank and group.

// Records and inline data alternate between two places: a rank that is already in the next call
// does not disturb a peer that still reads this one, and no rank can be two calls ahead.
struct RankSlot {
  alignas(64) std::atomic<std::uint32_t> arrived_for;  // The epoch this rank last waited to see.
  std::atomic<std::uint32_t> in_call;  // 1 while this rank may touch memory of its peers.
  CallRecord records[2];
  alignas(64) std::byte inline_data[2][kInlineBytes];
};

struct GroupBlock {
  // Bit 0: aborted. The rest counts completed synchronizations. Waiters sleep on it, so that both
  // completion and abort change the word and no wake-up can be missed.
  alignas(64) std::atomic<std::uint32_t> epoch;
  alignas(64) std::atomic<std::uint32_t> arrived;
  alignas(64) std::atomic<std::uint32_t> sleepers;
  RankSlot slots[kRankMax];
};

enum class MemberState : std::uint32_t { kAbsent = 0, kJoined = 1, kLeft = 2 };

struct MemberBlock {
  std::atomic<std::int32_t> pid;  // 0 where ranks are threads.
  std::atomic<MemberState> state;
};

enum class AbortState : std::uint32_t { kNone = 0, kWriting = 1, kWritten = 2 };

struct SessionBlock {
  std::atomic<AbortState> abort_state;
  std::uint32_t abort_code;  // A StatusCode.
  char abort_reason[kReasonBytes];
  MemberBlock members[kRankMax];
  std::atomic<std::uint32_t> group_members[kGroupMax];  // Zero if the group is free.
  std::atomic<std::uint64_t>
      claimed_bytes;  // Bytes of the memory file behind the layout of connect.
  GroupBlock groups[kGroupMax];
};

static_assert(std::atomic<AbortState>::is_always_lock_free);

}  // namespace muster::comm
