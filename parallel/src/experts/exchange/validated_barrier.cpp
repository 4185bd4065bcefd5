// SPDX-License-Identifier: Apache-2.0
#include "parallel/src/experts/exchange/validated_barrier.h"

#include <muster/comm/agree.h>
#include <muster/common/text.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

namespace muster::parallel::experts {

const char* to_string(Operation operation) {
  switch (operation) {
    case Operation::kCreate:
      return "create";
    case Operation::kPlanCounts:
    case Operation::kPlanTables:
      return "make_plan";
    case Operation::kDispatch:
      return "dispatch";
    case Operation::kCombine:
      return "combine";
    case Operation::kCombineWithValues:
      return "combine with row values";
    case Operation::kPrefetch:
      return "prefetch";
    case Operation::kReduce:
      return "reduce_gradients";
  }
  return "an unknown operation";
}

namespace {

using Records = std::span<const Record>;

std::string message(const Record& record) {
  const auto end = std::find(record.message.begin(), record.message.end(), '\0');
  return {record.message.begin(), end};
}

Status hashes_differ(Records records) {
  std::vector<std::uint64_t> hashes;
  for (const Record& record : records) {
    hashes.push_back(record.hash);
  }
  const std::string what = comm::describe(comm::find_dissent(hashes), hashes);
  switch (records[0].operation) {
    case Operation::kCreate:
      return invalid_argument("options of the expert exchange differ: those of ", what);
    case Operation::kPlanTables:
      return data_loss(
          "plans made of the same counts differ: that of ",
          what,
          "; memory is damaged, or speeds were set on some ranks only");
    default:
      return invalid_argument(
          records[0].operation,
          " got different plans or layers: that of ",
          what,
          "; pass the same layer and the plan of the same make_plan on all ranks");
  }
}

// A function of records that are equal on every rank, so all ranks return the same.
Status compare(Records records) {
  for (std::size_t r = 0; r < records.size(); ++r) {
    if (records[r].operation != records[0].operation) {
      return invalid_argument(
          "rank ",
          r,
          " calls ",
          records[r].operation,
          " where rank 0 calls ",
          records[0].operation,
          ": all ranks call the same operations in the same order");
    }
  }
  for (std::size_t r = 0; r < records.size(); ++r) {
    if (records[r].code != 0) {
      return {
          static_cast<StatusCode>(records[r].code),
          concat("rank ", r, ", ", records[r].operation, ": ", message(records[r]))};
    }
  }
  for (const Record& record : records) {
    if (record.hash != records[0].hash) {
      return hashes_differ(records);
    }
  }
  return {};
}

}  // namespace

Status ValidatedBarrier::wait(std::string_view phase, Deadline deadline) {
  ++count_;
  const MonotonicTime start = clock_.now();
  Status status = heap_.barrier(phase, deadline, waits_);
  waited_ns_ += std::chrono::nanoseconds{clock_.now() - start}.count();
  return status;
}

// Two sets of records alternate: a rank that writes those of validation n + 2 has passed n + 1, and
// all ranks had read those of n before they arrived there.
Status ValidatedBarrier::validate(
    std::string_view phase, const Record& mine, const Status& refusal, Deadline deadline) {
  Record written = mine;
  if (!refusal.ok()) {
    written.code = static_cast<std::uint32_t>(refusal.code());
    const std::string& text = refusal.message();
    std::copy_n(
        text.begin(), std::min(text.size(), written.message.size() - 1), written.message.begin());
  }
  const std::size_t set = (validations_++ % 2) * ranks();
  for (int peer = 0; peer < heap_.size(); ++peer) {
    heap_.at<Record>(peer, records_offset_)[set + static_cast<std::size_t>(heap_.rank())] = written;
  }
  MUSTER_RETURN_IF_ERROR(wait(phase, deadline));
  return compare(records());
}

std::span<const Record> ValidatedBarrier::records() const {
  const std::size_t set = ((validations_ + 1) % 2) * ranks();
  return {heap_.at<Record>(heap_.rank(), records_offset_) + set, ranks()};
}

}  // namespace muster::parallel::experts
