// SPDX-License-Identifier: Apache-2.0
// Deprecated: include <muster/parallel/context.h>, namespace muster::parallel.
// This header will be removed after the next release.
#pragma once

#include <muster/parallel/context.h>

namespace muster::kernels {
using parallel::context_attention_backward;
using parallel::context_attention_forward;
using parallel::context_block_means;
using parallel::context_moba_backward;
using parallel::context_moba_forward;
using parallel::context_relation;
using parallel::ContextCall;
using parallel::ContextForm;
using parallel::ContextGradients;
using parallel::ContextPlan;
using parallel::ContextRelation;
using parallel::ContextSegment;
using parallel::ContextSelection;
using parallel::ContextTensors;
using parallel::ContextTraffic;
using parallel::ShardOrder;
}  // namespace muster::kernels
