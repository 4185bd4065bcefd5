// SPDX-License-Identifier: Apache-2.0
#include "parallel/src/experts/plan/work.h"

#include <muster/common/hash.h>

#include <algorithm>
#include <array>

namespace muster::parallel {

namespace {

template <typename T>
std::uint64_t hash_of(const std::vector<T>& values) {
  return hash64(std::as_bytes(std::span{values}));
}

}  // namespace

EpPlan::EpPlan(const EpShape& plan_shape, const EpBalance& balance)
    : shape(plan_shape),
      receive_rows(ep_receive_rows(plan_shape, balance)),
      counts(at(plan_shape.ranks) * at(plan_shape.experts)),
      rows(counts.size()),
      groups(counts.size(), -1),
      slot_experts(at(plan_shape.ranks) * at(plan_shape.slot_count()), -1),
      begins(at(plan_shape.ranks) * at(plan_shape.group_count())),
      ends(begins.size()),
      group_rows(begins.size()) {
  destinations.reserve(static_cast<std::size_t>(plan_shape.tokens_max) * at(plan_shape.top_k));
}

std::int64_t ep_row_count(const EpPlan& plan, int rank) {
  return plan.ends[at(rank + 1) * at(plan.shape.group_count()) - 1];
}

// Moves: a step of B ends a quota or an expert, and part A has at most two quotas per rank.
EpPlanWork::EpPlanWork(const EpShape& plan_shape, const EpBalance& plan_balance)
    : shape(plan_shape),
      balance(plan_balance),
      local_experts(plan_shape.local_experts()),
      slots(plan_shape.slot_count()),
      groups(plan_shape.group_count()),
      receive_rows(ep_receive_rows(plan_shape, plan_balance)),
      exact_capacity_max(ep_exact_capacity_max(plan_shape, plan_balance)),
      tolerance_ppm(ep_tolerance_ppm(plan_balance)),
      padding(plan_shape.padding),
      weights(at(plan_shape.ranks)),
      weight_sum(ep_weights(plan_shape.ranks, plan_balance.speeds, weights)),
      totals(at(plan_shape.experts)),
      loads(weights.size()),
      capacities(weights.size()),
      excess(weights.size()),
      own(weights.size()),
      homes(weights.size()),
      retained(totals.size()),
      first_move(weights.size()),
      sent_to(weights.size()),
      exported(weights.size()),
      received(weights.size()),
      histogram(totals.size()),
      cursors(totals.size()) {
  quotas.reserve(2 * weights.size());
  exports.reserve(2 * weights.size());
  moves.reserve(2 * weights.size() + totals.size());
  remote.reserve(moves.capacity());
}

// begins and group_rows follow from ends, rows and groups; hashing them too would take a third of
// the time of a plan.
std::uint64_t ep_plan_hash(const EpPlan& plan) {
  const EpShape& shape = plan.shape;
  const std::array<std::int64_t, 8> scalars{
      shape.ranks,
      shape.experts,
      shape.top_k,
      shape.tokens_max,
      shape.slot_count(),
      shape.padding,
      shape.compact,
      plan.receive_rows};
  const std::array<std::uint64_t, 6> hashes{
      hash64(std::as_bytes(std::span{scalars})),
      hash_of(plan.counts),
      hash_of(plan.rows),
      hash_of(plan.groups),
      hash_of(plan.slot_experts),
      hash_of(plan.ends)};
  return hash64(std::as_bytes(std::span{hashes}));
}

EpPlanner::EpPlanner(const EpShape& shape, const EpBalance& balance)
    : work_(std::make_unique<EpPlanWork>(shape, balance)) {}

EpPlanner::~EpPlanner() = default;
EpPlanner::EpPlanner(EpPlanner&&) noexcept = default;
EpPlanner& EpPlanner::operator=(EpPlanner&&) noexcept = default;

Status EpPlanner::plan(std::span<const std::int32_t> counts, EpPlan& plan) {
  if (plan.shape != work_->shape || plan.receive_rows != work_->receive_rows) {
    return invalid_argument(
        "expert parallelism: the plan was constructed for another shape than its planner's: give "
        "both the same EpShape and EpBalance");
  }
  MUSTER_RETURN_IF_ERROR(sum_counts(*work_, counts));
  MUSTER_RETURN_IF_ERROR(find_quotas(*work_));
  split_quotas(*work_);
  write_tables(*work_, counts, plan);
  plan.hash = ep_plan_hash(plan);
  plan.tokens = 0;
  plan.destinations.clear();
  return {};
}

Status EpPlanner::place(int rank, std::span<const std::int32_t> choices, EpPlan& plan) {
  return place_choices(*work_, rank, choices, plan);
}

Status EpPlanner::set_speeds(std::span<const double> speeds) {
  const EpShape& shape = work_->shape;
  MUSTER_RETURN_IF_ERROR(check_speeds(shape.ranks, speeds));
  std::vector<std::int64_t>& weights = work_->excess;  // reused as scratch
  const std::int64_t sum = ep_weights(shape.ranks, speeds, weights);
  const std::int64_t needed = ep_capacity_of(shape, weights, sum);
  if (work_->balance.mode != EpBalanceMode::kNone && needed > work_->exact_capacity_max) {
    return invalid_argument(
        "expert parallelism: these speeds give one rank up to ",
        needed,
        " rows and buffers have room for ",
        work_->exact_capacity_max,
        ": even them out, or construct with a larger capacity_max");
  }
  std::copy(weights.begin(), weights.end(), work_->weights.begin());
  work_->weight_sum = sum;
  return {};
}

}  // namespace muster::parallel
