// SPDX-License-Identifier: Apache-2.0
// Deprecated: include <muster/parallel/experts/layer.h>, namespace muster::parallel.
// This header will be removed after the next release.
#pragma once

#include <muster/kernels/ep/event.h>
#include <muster/kernels/ep/exchange.h>
#include <muster/parallel/experts/layer.h>

namespace muster::kernels {
using parallel::ExpertGroup;
using parallel::ExpertLayer;
using parallel::ExpertLayerOptions;
using parallel::ExpertWeights;
using parallel::make_all_to_all_layer;
using parallel::MovementObserver;
}  // namespace muster::kernels
