// SPDX-License-Identifier: Apache-2.0
// Cost of one parameter buffer on each of its ranks.
#pragma once

#include "optimizer/src/layout/layout.h"

#include <muster/optimizer/plan.h>

#include <cstddef>
#include <vector>

namespace muster::optimizer {

// The plan of the region is made without counts and shards, so 100,000 ranks take no gigabytes.
[[nodiscard]] RegionCost cost_region(
    const Routing& routing, const OptimizerOptions& options, const BufferKey& key, int ranks);

// Optimizer states of `shard`, absmax of 8-bit blocks included.
[[nodiscard]] double state_bytes(const RoutedParameter& parameter, const Shard& shard);

// Bytes each rank sends to others to bring matrices together and results back.
[[nodiscard]] std::vector<double> exchange_bytes(const BufferPlan& plan);

// Memory of each rank's update: the largest round's matrices with their send and receive buffers,
// and the Newton-Schulz workspace of its largest block on one thread.
[[nodiscard]] std::vector<double> scratch_bytes(
    const BufferPlan& plan, const Routing& routing, const OptimizerOptions& options);

// scratch_bytes of every rank of kReplicated, whose plan has no tasks when it is made for a report.
[[nodiscard]] double replicated_scratch_bytes(
    const BufferPlan& plan, const Routing& routing, const OptimizerOptions& options);

}  // namespace muster::optimizer
