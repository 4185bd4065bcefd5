// Adds what a layer with block attention recorded to its lanes. Neither allocates nor makes a
// system call where the record fits.
#pragma once

#include <muster/agent/agent.h>

namespace muster::agent {

// `max_logits` [heads]: a head with rows that are not finite becomes NaN there, so that no healthy
// looking maximum stands beside them. kInvalidArgument names a span whose size does not fit the
// heads of `lanes`; nothing is added then.
[[nodiscard]] Status add_record(
    const MobaRecord& record, MobaLanes& lanes, std::span<float> max_logits);

// kInvalidArgument for negative counts, and for more reached than there is.
[[nodiscard]] Status add_reach(const ReachRecord& record, MobaLanes& lanes);

// An event of the layer's group of ranks.
void add_pass(const parallel::EpEvent& event, EpLanes& lanes);

}  // namespace muster::agent
