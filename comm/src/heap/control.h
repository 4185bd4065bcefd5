// SPDX-License-Identifier: Apache-2.0
// Control block of a symmetric heap, through which its ranks synchronise. Shared like the chunks;
// zero is the initial state of every field.
#pragma once

#include "comm/src/call_record.h"
#include "comm/src/group/mapping.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace muster::comm {

// The name of a phase, in atomic words: a rank that looks for a late peer may read the name while
// the peer writes it. Longer names are cut.
class PhaseText {
 public:
  void store(std::string_view text);
  [[nodiscard]] std::string load() const;

 private:
  static constexpr std::size_t kWords = 14;
  std::atomic<std::uint64_t> length_;
  std::atomic<std::uint64_t> words_[kWords];
};

// The record of a rank that has arrived at a barrier.
struct HeapArrival {
  alignas(64) std::atomic<std::uint64_t> phase_hash;
  std::atomic<std::int64_t> at_ns;  // On the monotonic clock of the host.
  std::atomic<std::uint64_t> allocation_hash;
  std::atomic<std::uint64_t> allocation_count;
  std::atomic<std::uint64_t> allocation_bytes;
  alignas(64) PhaseText phase;
};

// Arrivals alternate between two places: a rank may be at the next barrier while a peer still reads
// of this one, and cannot be further.
struct HeapSlot {
  alignas(64)
      std::atomic<std::uint32_t> last;  // 1 + place of the last arrival, or zero before the first.
  std::atomic<std::uint32_t> left;      // 1 once this rank has destroyed its heap.
  HeapArrival arrivals[2];
};

struct HeapControl {
  std::atomic<std::uint32_t> left_count;
  HeapSlot slots[kRankMax];
};

inline constexpr std::size_t kHeapControlBytes =
    (sizeof(HeapControl) + kPageBytes - 1) / kPageBytes * kPageBytes;

[[nodiscard]] std::uint64_t mix(std::uint64_t hash, std::uint64_t word);
[[nodiscard]] std::uint64_t hash_of(std::string_view text);

}  // namespace muster::comm
