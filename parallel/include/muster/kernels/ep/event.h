// SPDX-License-Identifier: Apache-2.0
// Deprecated: include <muster/parallel/experts/event.h>, namespace muster::parallel.
// This header will be removed after the next release.
#pragma once

#include <muster/parallel/experts/event.h>

namespace muster::kernels {
using parallel::EpEvent;
using parallel::kEpEventRanksMax;
}  // namespace muster::kernels
