// SPDX-License-Identifier: Apache-2.0
// A barrier that validates: every rank publishes the operation it is about to run, and all ranks
// return the same Status before any data moves.
#pragma once

#include <muster/comm/symmetric_heap.h>
#include <muster/common/clock.h>
#include <muster/common/status.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace muster::parallel::experts {

// Operation that a rank is about to run. All ranks at one barrier must run the same.
enum class Operation : std::uint32_t {
  kCreate,
  kPlanCounts,
  kPlanTables,
  kDispatch,
  kCombine,
  kCombineWithValues,
  kPrefetch,
  kReduce,
};

[[nodiscard]] const char* to_string(Operation operation);

// Presence of gates beside the rows. A rank without tokens has kEither and follows its peers.
enum class Gates : std::uint32_t { kNo, kYes, kEither };

struct Record {
  std::uint64_t hash;
  Operation operation;
  Gates gates;
  std::uint32_t code;  // StatusCode with which this rank refuses, or 0
  std::array<char, 236> message;
};

[[nodiscard]] inline Record make_record(Operation operation, std::uint64_t hash) {
  Record record{};
  record.hash = hash;
  record.operation = operation;
  record.gates = Gates::kEither;
  return record;
}

// Thread-safety: one thread at a time.
class ValidatedBarrier {
 public:
  // `records_offset` is the offset of heap_bytes() in every rank's chunk, aligned for Record. Adds
  // the waits for each peer to `waits` [ranks]. The arguments must outlive the barrier.
  ValidatedBarrier(
      comm::SymmetricHeap& heap,
      std::size_t records_offset,
      std::span<std::int64_t> waits,
      const Clock& clock)
      : heap_(heap), records_offset_(records_offset), waits_(waits), clock_(clock) {}

  // Records of two barriers, by rank.
  [[nodiscard]] static std::size_t heap_bytes(std::size_t ranks) {
    return 2 * ranks * sizeof(Record);
  }

  // Publishes `mine`, with `refusal` unless that is a success, and waits for all ranks. Returns the
  // same Status on all of them: kInvalidArgument if operations or hashes differ (kDataLoss for the
  // hashes of plans), else the refusal of the lowest rank that has one, with its rank in front.
  [[nodiscard]] Status validate(
      std::string_view phase, const Record& mine, const Status& refusal, Deadline deadline);

  // Waits for all ranks without validation.
  [[nodiscard]] Status wait(std::string_view phase, Deadline deadline);

  // Records of all ranks at the last validate(), by rank. Valid until the next but one.
  [[nodiscard]] std::span<const Record> records() const;

  // Number of barriers so far, failed ones included.
  [[nodiscard]] std::uint64_t count() const { return count_; }

  // Time spent in all of them.
  [[nodiscard]] std::int64_t waited_ns() const { return waited_ns_; }

 private:
  [[nodiscard]] std::size_t ranks() const { return static_cast<std::size_t>(heap_.size()); }

  comm::SymmetricHeap& heap_;
  std::size_t records_offset_;
  std::span<std::int64_t> waits_;
  const Clock& clock_;
  std::uint64_t count_{0};
  std::uint64_t validations_{0};
  std::int64_t waited_ns_{0};
};

}  // namespace muster::parallel::experts
