// SPDX-License-Identifier: Apache-2.0
// Records of the collectives that ranks have entered, and the check that all ranks make the same
// call.
#pragma once

#include <muster/comm/communicator.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace muster::comm {

inline constexpr int kRankMax = 128;
// Contributions up to this size travel beside the record, so that a small collective costs one
// synchronization instead of two.
inline constexpr std::size_t kInlineBytes = 4096;

enum class CallKind : std::uint8_t {
  kBarrier,
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kAllToAll,
  kBroadcast,
  kAllocate,
  kSplit,
  kSymmetricHeap,
};

// The place in which peers read this rank's contribution.
enum class Placement : std::uint8_t {
  kInline,  // Beside the record.
  kDirect,  // Where the caller has it, at `offset`.
  kStaged,  // Copied piece by piece through the staging area.
};

// Plain bytes, kept in shared memory or sent in a message.
struct CallRecord {
  std::uint64_t index;  // Position in the communicator's sequence of calls, from 1.
  CallKind kind;
  DType dtype;
  ReduceOp op;
  Placement placement;
  std::uint8_t refused;  // allocate: this rank has no room. split: no free group.
  std::int32_t root;     // broadcast: the root. split: the color.
  std::int32_t key;      // split only.
  std::uint64_t count;   // Elements; allocate and symmetric_heap: bytes.
  std::uint64_t offset;  // kDirect: address of the contribution, relative to the session's base.
  std::uint64_t result;  // Written by a leader between two synchronizations of one call.
  std::uint64_t counts[kRankMax];
  std::uint64_t receive_counts[kRankMax];  // all_to_all only.
};

struct CallName {
  CallKind kind;
  std::uint64_t index;
};

[[nodiscard]] std::string_view to_string(CallKind kind);
// "all_reduce #123".
[[nodiscard]] std::string to_string(const CallName& call);

// "all_reduce(sum) of 12 float32".
[[nodiscard]] std::string describe(const CallRecord& call, int size);

// True if all ranks make the same call; `calls[r]` is the record of rank r.
[[nodiscard]] bool is_agreed(std::span<const CallRecord* const> calls);

// kInvalidArgument naming the first two ranks that disagree; `names[r]` is how to call rank r. The
// same text on every rank. Only for calls that are not agreed.
[[nodiscard]] Status disagreement(
    std::span<const CallRecord* const> calls, std::span<const std::string> names);

// count * size_bytes(dtype) of elements [0, rank) and of all: prefix sums in bytes.
[[nodiscard]] std::size_t begin_bytes(
    std::span<const std::uint64_t> counts, std::size_t part, DType dtype);

}  // namespace muster::comm
