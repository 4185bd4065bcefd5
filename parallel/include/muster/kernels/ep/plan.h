// SPDX-License-Identifier: Apache-2.0
// Deprecated: include <muster/parallel/experts/plan.h>, namespace muster::parallel.
// This header will be removed after the next release.
#pragma once

#include <muster/parallel/experts/plan.h>

namespace muster::kernels {
using parallel::check;
using parallel::check_plan;
using parallel::ep_receive_rows;
using parallel::ep_row_count;
using parallel::ep_rows_of;
using parallel::EpBalance;
using parallel::EpBalanceMode;
using parallel::EpPlan;
using parallel::EpPlanner;
using parallel::EpPlanStatistics;
using parallel::EpShape;
using parallel::kEpRanksMax;
using parallel::kEpTopKMax;
}  // namespace muster::kernels
