// SPDX-License-Identifier: Apache-2.0
// Deprecated: include <muster/parallel/experts/sizes.h>, namespace muster::parallel.
// This header will be removed after the next release.
#pragma once

#include <muster/kernels/ep/plan.h>
#include <muster/parallel/experts/sizes.h>

namespace muster::kernels {
using parallel::ep_break_even;
using parallel::ep_break_even_tokens;
using parallel::ep_distinct_ranks;
using parallel::ep_sizes;
using parallel::EpBreakEven;
using parallel::EpLayerShape;
using parallel::EpRates;
using parallel::EpSizes;
}  // namespace muster::kernels
