// SPDX-License-Identifier: Apache-2.0
// Deprecated: include <muster/parallel/experts/exchange.h>, namespace muster::parallel.
// This header will be removed after the next release.
#pragma once

#include <muster/kernels/ep/event.h>
#include <muster/kernels/ep/plan.h>
#include <muster/parallel/experts/exchange.h>

namespace muster::kernels {
using parallel::EpExchange;
using parallel::EpExchangeOptions;
using parallel::EpLayerMemory;
using parallel::EpNumerics;
using parallel::EpPool;
using parallel::EpProjection;
using parallel::EpProjectionMemory;
using parallel::EpRows;
}  // namespace muster::kernels
