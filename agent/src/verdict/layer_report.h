// SPDX-License-Identifier: Apache-2.0
// Adds the records of a layer to its lanes. Neither allocates nor makes a system call if the record
// fits.
#pragma once

#include <muster/agent/agent.h>

namespace muster::agent {

// `max_logits` [heads]: the logit of a head with rows that are not finite becomes NaN, so that it
// does not look healthy. kInvalidArgument names a span whose size does not fit the heads of `lanes`
// and adds nothing.
[[nodiscard]] Status add_record(
    const MobaRecord& record, MobaLanes& lanes, std::span<float> max_logits);

// kInvalidArgument for negative counts, and for more reached than present.
[[nodiscard]] Status add_reach(const kernels::GradientCoverage& coverage, MobaLanes& lanes);

// Adds an event of the layer's group of ranks.
void add_pass(const parallel::EpEvent& event, EpLanes& lanes);

}  // namespace muster::agent
