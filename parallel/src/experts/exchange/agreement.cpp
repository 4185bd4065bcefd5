// How ranks find out, before anything moves, that they do not mean the same.
#include "parallel/src/experts/exchange/exchange.h"

#include <muster/comm/agree.h>

#include <algorithm>
#include <string>
#include <vector>

namespace muster::parallel::experts {

const char* name_of(Operation operation) {
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

std::string text_of(const Record& record) {
  const auto end = std::find(record.message.begin(), record.message.end(), '\0');
  return {record.message.begin(), end};
}

Status differing(const Record* records, int ranks) {
  std::vector<std::uint64_t> hashes;
  for (int r = 0; r < ranks; ++r) {
    hashes.push_back(records[r].hash);
  }
  const std::string what = comm::describe(comm::find_dissent(hashes), hashes);
  switch (records[0].operation) {
    case Operation::kCreate:
      return invalid_argument("options of the expert exchange differ: those of " + what);
    case Operation::kPlanTables:
      return data_loss(
          "plans made of the same counts differ: that of " + what +
          "; memory is damaged, or speeds were set on some ranks only");
    default:
      return invalid_argument(
          std::string{name_of(records[0].operation)} + " got different plans or layers: that of " +
          what + "; pass the same layer and the plan of the same make_plan on all ranks");
  }
}

}  // namespace

Record Exchange::record(Operation operation, std::uint64_t hash) const {
  Record result{};
  result.hash = hash;
  result.operation = operation;
  result.gates = Gates::kEither;
  return result;
}

Status Exchange::barrier(std::string_view phase, Deadline deadline) {
  const auto start = std::chrono::steady_clock::now();
  Status status = heap_.barrier(
      phase, deadline, std::span{event_.wait_ns}.first(static_cast<std::size_t>(ranks_)));
  waited_ns_ += std::chrono::nanoseconds{std::chrono::steady_clock::now() - start}.count();
  pulled_ = false;
  return status;
}

// Records of two meetings take turns: who writes those of meeting n + 2 has met all ranks at
// n + 1, so they have read those of n.
Status Exchange::meet(
    std::string_view phase, const Record& mine, const Status& refusal, Deadline deadline) {
  Record written = mine;
  if (!refusal.ok()) {
    written.code = static_cast<std::uint32_t>(refusal.code());
    const std::string& text = refusal.message();
    std::copy_n(
        text.begin(), std::min(text.size(), written.message.size() - 1), written.message.begin());
  }
  const std::size_t turn = (meetings_++ % 2) * static_cast<std::size_t>(ranks_);
  for (int peer = 0; peer < ranks_; ++peer) {
    at<Record>(peer, layout_.records)[turn + static_cast<std::size_t>(rank_)] = written;
  }
  MUSTER_RETURN_IF_ERROR(barrier(phase, deadline));
  return compare(last_records());
}

const Record* Exchange::last_records() const {
  const std::size_t turn = ((meetings_ + 1) % 2) * static_cast<std::size_t>(ranks_);
  return at<Record>(rank_, layout_.records) + turn;
}

// Looks at the same records on every rank, so that all return the same.
Status Exchange::compare(const Record* records) const {
  for (int r = 0; r < ranks_; ++r) {
    if (records[r].operation != records[0].operation) {
      return invalid_argument(
          "rank " + std::to_string(r) + " calls " + name_of(records[r].operation) +
          " where rank 0 calls " + name_of(records[0].operation) +
          ": all ranks call the same operations in the same order");
    }
  }
  for (int r = 0; r < ranks_; ++r) {
    if (records[r].code != 0) {
      return {
          static_cast<StatusCode>(records[r].code),
          "rank " + std::to_string(r) + ", " + name_of(records[r].operation) + ": " +
              text_of(records[r])};
    }
  }
  for (int r = 0; r < ranks_; ++r) {
    if (records[r].hash != records[0].hash) {
      return differing(records, ranks_);
    }
  }
  return {};
}

Status Exchange::check_plan_argument(const EpPlan& plan) const {
  if (!(plan.shape == options_.shape)) {
    return invalid_argument(
        "the plan is of another shape (" + std::to_string(plan.shape.ranks) + " ranks, " +
        std::to_string(plan.shape.experts) + " experts, top " + std::to_string(plan.shape.top_k) +
        ") than the exchange (" + std::to_string(ranks_) + ", " +
        std::to_string(options_.shape.experts) + ", " + std::to_string(options_.shape.top_k) +
        "): make it with this exchange");
  }
  if (plan.receive_rows != receive_rows_) {
    return invalid_argument(
        "the plan is for buffers of " + std::to_string(plan.receive_rows) +
        " rows, the exchange has " + std::to_string(receive_rows_) +
        ": their balance differs; make it with this exchange");
  }
  if (std::cmp_not_equal(plan.links.size(), receive_rows_)) {
    return invalid_argument(
        "the plan has " + std::to_string(plan.links.size()) + " links for " +
        std::to_string(receive_rows_) +
        " rows: a planner's plan cannot move rows, one of make_plan can");
  }
  if (plan.rank != rank_) {
    return invalid_argument(
        "the plan is of rank " + std::to_string(plan.rank) + ", this is rank " +
        std::to_string(rank_) + ": each rank keeps its own");
  }
  const std::int64_t choices = plan.tokens * options_.shape.top_k;
  if (plan.tokens < 0 || plan.tokens > options_.shape.tokens_max ||
      std::cmp_less(plan.destinations.size(), choices)) {
    return invalid_argument(
        "the plan has " + std::to_string(plan.destinations.size()) + " destinations for " +
        std::to_string(plan.tokens) + " tokens: it was changed after make_plan");
  }
  return {};
}

}  // namespace muster::parallel::experts
