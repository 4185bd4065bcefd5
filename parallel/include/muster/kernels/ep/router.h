// SPDX-License-Identifier: Apache-2.0
// Deprecated: include <muster/parallel/experts/router.h>, namespace muster::parallel.
// This header will be removed after the next release.
#pragma once

#include <muster/parallel/experts/router.h>

namespace muster::kernels {
using parallel::check;
using parallel::route;
using parallel::route_backward;
using parallel::router_statistics;
using parallel::router_z_loss;
using parallel::RouterOptions;
using parallel::RouterScore;
using parallel::RouterStatistics;
using parallel::sequence_loss;
using parallel::switch_loss;
using parallel::update_router_bias;
}  // namespace muster::kernels
