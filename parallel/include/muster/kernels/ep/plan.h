// Deprecated: include <muster/parallel/experts/plan.h>, namespace muster::parallel.
// This header will be removed after the next release.
#pragma once

#include <muster/parallel/experts/plan.h>

namespace muster::kernels {
using parallel::check;
using parallel::check_plan;
using parallel::ep_receive_rows;
using parallel::ep_row_count;
using parallel::EpBalance;
using parallel::EpBalanceMode;
using parallel::EpPlan;
using parallel::EpPlanner;
using parallel::EpPlanStatistics;
using parallel::EpShape;
using parallel::kEpRanksMax;
using parallel::kEpTopKMax;

[[deprecated("use parallel::ep_row_count")]] [[nodiscard]] inline std::int64_t ep_rows_of(
    const EpPlan& plan, int rank) {
  return ep_row_count(plan, rank);
}
}  // namespace muster::kernels
