// SPDX-License-Identifier: Apache-2.0
#include "optimizer/src/plan/cost.h"
#include "optimizer/src/routing/routing.h"

#include <muster/optimizer/plan.h>

#include <algorithm>

namespace muster::optimizer {
namespace {

Status check_ranks(int ranks, int expert_ranks) {
  if (ranks < 1) {
    return invalid_argument(
        "a plan needs at least 1 rank that holds the replicated parameters, got ", ranks);
  }
  if (expert_ranks < 1 || ranks % expert_ranks != 0) {
    return invalid_argument(
        expert_ranks,
        " ranks that share each expert do not divide ",
        ranks,
        " ranks; take ranks / (size of the expert-parallel group)");
  }
  return {};
}

void add(RankCost& sum, const RankCost& cost) {
  sum.parameter_bytes += cost.parameter_bytes;
  sum.gradient_bytes += cost.gradient_bytes;
  sum.master_bytes += cost.master_bytes;
  sum.state_bytes += cost.state_bytes;
  sum.scratch_bytes = std::max(sum.scratch_bytes, cost.scratch_bytes);  // one region at a time
  sum.newton_schulz_flops += cost.newton_schulz_flops;
  sum.traffic.reduce_scatter += cost.traffic.reduce_scatter;
  sum.traffic.all_gather += cost.traffic.all_gather;
  sum.traffic.exchange += cost.traffic.exchange;
  sum.traffic.agc += cost.traffic.agc;
}

}  // namespace

RankCost PlanReport::of_rank(int rank) const {
  RankCost sum;
  for (const RegionCost& region : regions) {
    add(sum, region.cost[static_cast<std::size_t>(rank % region.ranks)]);
  }
  return sum;
}

Expected<PlanReport> report_plan(
    std::vector<ParameterSpec> specs,
    const OptimizerOptions& options,
    int ranks,
    int expert_ranks) {
  MUSTER_RETURN_IF_ERROR(check_ranks(ranks, expert_ranks));
  MUSTER_RETURN_IF_ERROR(validate(options));
  MUSTER_ASSIGN_OR_RETURN(const Routing routing, route(std::move(specs), options.routes));
  MUSTER_RETURN_IF_ERROR(check_routes(routing, options.routes));
  PlanReport report;
  report.layout = options.layout;
  report.hash = plan_hash(routing, options);
  for (const BufferKey& key : buffer_keys(routing)) {
    const int holders = key.placement == Placement::kExpert ? expert_ranks : ranks;
    report.regions.push_back(cost_region(routing, options, key, holders));
  }
  return report;
}

}  // namespace muster::optimizer
