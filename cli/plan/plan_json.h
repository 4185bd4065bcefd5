// SPDX-License-Identifier: Apache-2.0
// A plan for programs.
#pragma once

#include "cli/plan/model.h"

#include <muster/optimizer/plan.h>

#include <span>
#include <string>

namespace muster::cli {

// One object: the model, the rank counts, the advised layout when all were planned, and per plan
// its regions and their sum, each quantity as {lightest, median, heaviest, mean} over ranks. Bytes
// and flops are plain numbers.
[[nodiscard]] std::string plan_json(
    const PlannedModel& model,
    int ranks,
    int expert_ranks,
    std::span<const optimizer::PlanReport> reports);

}  // namespace muster::cli
