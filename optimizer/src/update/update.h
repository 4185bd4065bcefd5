// SPDX-License-Identifier: Apache-2.0
// The update rules on the shard of one parameter. No communication, no allocation.
#pragma once

#include "optimizer/src/routing/routing.h"
#include "optimizer/src/storage/shard.h"

#include <muster/optimizer/optimizer.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace muster::optimizer {

// Kernel arguments of a step for one parameter. `step` is the 1-based count of applied updates.
[[nodiscard]] kernels::UpdateStep update_step(
    const RoutedParameter& parameter,
    const OptimizerOptions& options,
    const StepDecision& decision,
    std::int64_t step);

// Updates a whole shard under any rule but Muon.
[[nodiscard]] kernels::UpdateStatistics update_elementwise(
    ShardState& shard, Rule rule, const OptimizerOptions& options, const kernels::UpdateStep& step);

// Muon's first half on elements [begin, begin + count) of the shard: momentum, and the direction
// [count].
[[nodiscard]] kernels::UpdateStatistics update_direction(
    ShardState& shard,
    std::size_t begin,
    std::size_t count,
    const MuonOptions& options,
    const kernels::UpdateStep& step,
    float* direction);

// A state of a rule, under its name in a checkpoint ("adamw_m"), in ShardState::first or ::second.
struct StateKind {
  const char* name{nullptr};
  bool is_second{false};
  bool is_signed{true};
};

[[nodiscard]] std::vector<StateKind> state_kinds(Rule rule);

// Adds the statistics of `count` elements to those of their group.
void accumulate(
    GroupUpdateStatistics& group, std::size_t count, const kernels::UpdateStatistics& part);

}  // namespace muster::optimizer
