// SPDX-License-Identifier: Apache-2.0
#include "parallel/src/experts/all_to_all/all_to_all.h"

#include <numeric>
#include <string>

namespace muster::parallel {

namespace {

using Counts = std::vector<std::int64_t>;

Status check(const Routing& routing, std::int64_t ranks) {
  if (routing.experts % ranks != 0) {
    return invalid_argument(
        routing.experts,
        " experts cannot be placed evenly on ",
        ranks,
        " expert-parallel ranks; use a number of ranks that divides it");
  }
  if (std::ssize(routing.expert) != routing.tokens * routing.top_k ||
      std::ssize(routing.counts) != routing.experts) {
    return invalid_argument(
        "routing: sizes of expert and counts do not fit tokens, top_k, experts");
  }
  const std::int64_t counted =
      std::accumulate(routing.counts.begin(), routing.counts.end(), std::int64_t{0});
  if (counted != std::ssize(routing.expert)) {
    return invalid_argument("routing: counts do not add up to tokens * top_k");
  }
  return {};
}

// Rows by expert, inside an expert by (token, choice): a counting sort.
void sort_by_expert(const Routing& routing, Counts& rows) {
  Counts next(routing.counts.size());
  std::exclusive_scan(routing.counts.begin(), routing.counts.end(), next.begin(), std::int64_t{0});
  rows.resize(routing.expert.size());
  for (std::size_t row = 0; row < routing.expert.size(); ++row) {
    const auto expert = static_cast<std::size_t>(routing.expert[row]);
    rows[static_cast<std::size_t>(next[expert]++)] = static_cast<std::int64_t>(row);
  }
}

// arrivals[rank, local expert]: rows in the order they arrive. They are to lie by (local expert,
// rank); fills the offsets of the experts and the place of every row.
void place_arrivals(const Counts& arrivals, std::size_t ranks, DispatchPlan& plan) {
  const std::size_t local = arrivals.size() / ranks;
  plan.expert_offsets.assign(local + 1, 0);
  Counts start(arrivals.size());
  std::int64_t offset = 0;
  for (std::size_t expert = 0; expert < local; ++expert) {
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      start[rank * local + expert] = offset;
      offset += arrivals[rank * local + expert];
    }
    plan.expert_offsets[expert + 1] = offset;
  }
  plan.rows_received = offset;
  plan.receive_order.resize(static_cast<std::size_t>(offset));
  auto place = plan.receive_order.begin();
  for (std::size_t run = 0; run < arrivals.size(); ++run) {
    std::iota(place, place + arrivals[run], start[run]);
    place += arrivals[run];
  }
}

}  // namespace

Status make_dispatch_plan(
    const Routing& routing, comm::Communicator& ep, Deadline deadline, DispatchPlan& plan) {
  const auto ranks = static_cast<std::size_t>(ep.size());
  MUSTER_RETURN_IF_ERROR(check(routing, ep.size()));
  const std::size_t local = routing.counts.size() / ranks;
  sort_by_expert(routing, plan.send_rows);

  Counts arrivals(routing.counts.size());
  const std::vector<std::size_t> equal(ranks, local);
  MUSTER_RETURN_IF_ERROR(
      ep.all_to_all<std::int64_t>(routing.counts, equal, arrivals, equal, deadline)
          .context("exchanging expert counts"));

  plan.send_counts.assign(ranks, 0);
  plan.receive_counts.assign(ranks, 0);
  for (std::size_t i = 0; i < ranks * local; ++i) {
    plan.send_counts[i / local] += static_cast<std::size_t>(routing.counts[i]);
    plan.receive_counts[i / local] += static_cast<std::size_t>(arrivals[i]);
  }
  place_arrivals(arrivals, ranks, plan);
  return {};
}

}  // namespace muster::parallel
