// SPDX-License-Identifier: Apache-2.0
// Deprecated: include <muster/parallel/experts/trace.h>, namespace muster::parallel.
// This header will be removed after the next release.
#pragma once

#include <muster/kernels/ep/plan.h>
#include <muster/parallel/experts/trace.h>

namespace muster::kernels {
using parallel::EpTraceHeader;
using parallel::EpTraceOptions;
using parallel::EpTraceReader;
using parallel::EpTraceRecord;
using parallel::EpTraceWriter;
}  // namespace muster::kernels
