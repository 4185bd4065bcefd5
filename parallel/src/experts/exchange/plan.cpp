// SPDX-License-Identifier: Apache-2.0
#include "parallel/src/experts/exchange/exchange.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>

namespace muster::parallel::experts {

// A rank reads the counts between the barriers "counts" and "tables", and no rank writes those of
// the next plan before "tables". After a refusal at "counts" no rank reads them.
Status Exchange::make_plan(std::span<const std::int32_t> choices, EpPlan& plan, Deadline deadline) {
  const Stopwatch watch{clock_, barrier_, event_.plan_ns};
  const Status counted = count(choices, plan);
  publish_counts();
  MUSTER_RETURN_IF_ERROR(
      barrier_.validate("plan, counts", make_record(Operation::kPlanCounts, 0), counted, deadline));
  const auto cells = static_cast<std::size_t>(ranks_) * histogram_.size();
  Status placed = planner_.plan({at<std::int32_t>(rank_, layout_.counts), cells}, plan);
  if (placed.ok()) {
    placed = planner_.place(rank_, choices, plan);
  }
  if (placed.ok()) {
    publish_row_chain(plan);
  }
  const Record made = make_record(Operation::kPlanTables, placed.ok() ? plan.hash : 0);
  MUSTER_RETURN_IF_ERROR(barrier_.validate("plan, tables", made, placed, deadline));
  plan.row_chain.resize(static_cast<std::size_t>(receive_rows_));
  std::memcpy(
      plan.row_chain.data(),
      at<std::int32_t>(rank_, layout_.row_chain),
      static_cast<std::size_t>(ep_row_count(plan, rank_)) * sizeof(std::int32_t));
  return {};
}

Status Exchange::count(std::span<const std::int32_t> choices, const EpPlan& plan) {
  std::fill(histogram_.begin(), histogram_.end(), 0);
  const EpShape& shape = options_.shape;
  if (!(plan.shape == shape) || plan.receive_rows != receive_rows_) {
    return invalid_argument(
        "the plan to fill has another shape or balance than the exchange: construct it with "
        "options().shape and options().balance");
  }
  const auto top_k = static_cast<std::size_t>(shape.top_k);
  if (choices.size() % top_k != 0 || std::cmp_greater(choices.size() / top_k, shape.tokens_max)) {
    return invalid_argument(
        choices.size(),
        " choices are not [tokens, ",
        shape.top_k,
        "] with at most ",
        shape.tokens_max,
        " tokens");
  }
  for (std::size_t i = 0; i < choices.size(); ++i) {
    if (choices[i] < 0 || choices[i] >= shape.experts) {
      std::fill(histogram_.begin(), histogram_.end(), 0);
      return invalid_argument(
          "choice ",
          i % top_k,
          " of token ",
          i / top_k,
          " is expert ",
          choices[i],
          ", there are ",
          shape.experts);
    }
    ++histogram_[static_cast<std::size_t>(choices[i])];
  }
  return {};
}

void Exchange::publish_counts() {
  const std::size_t begin = static_cast<std::size_t>(rank_) * histogram_.size();
  for (int peer = 0; peer < ranks_; ++peer) {
    std::copy(histogram_.begin(), histogram_.end(), at<std::int32_t>(peer, layout_.counts) + begin);
  }
}

// From the last choice to the first, so that a row's successor is known when its entry is written.
// If ranks have made different plans, which the next barrier detects, two may write the same entry.
void Exchange::publish_row_chain(const EpPlan& plan) {
  const std::int64_t top_k = options_.shape.top_k;
  std::fill(next_token_.begin(), next_token_.end(), -1);
  for (std::int64_t t = 0; t < plan.tokens; ++t) {
    for (std::int64_t k = top_k - 1; k >= 0; --k) {
      const Place to = place(plan.destinations[static_cast<std::size_t>(t * top_k + k)]);
      const auto peer = static_cast<std::size_t>(to.rank);
      const std::int64_t next = next_token_[peer] == t ? next_row_[peer] + 1 : 0;
      std::atomic_ref<std::int32_t>{at<std::int32_t>(to.rank, layout_.row_chain)[to.row]}.store(
          static_cast<std::int32_t>(to.is_first ? next : -next - 1), std::memory_order_relaxed);
      next_token_[peer] = t;
      next_row_[peer] = to.row;
    }
  }
}

}  // namespace muster::parallel::experts
