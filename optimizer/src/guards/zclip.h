// SPDX-License-Identifier: Apache-2.0
// ZClip (arXiv 2504.02507) on one stream of gradient norms.
#pragma once

#include <muster/optimizer/guards.h>

namespace muster::optimizer {

[[nodiscard]] Status validate(const ZClipOptions& options);

// The norm that `norm` is brought down to (itself without a spike), from the running values in
// `state`, which then learn it. The first warmup_steps norms only teach mean and population
// variance; after them both are exponential averages, variance around the new mean as in the
// authors' code.
[[nodiscard]] double zclip(
    const ZClipOptions& options, double norm, GuardState& state, bool& spike);

}  // namespace muster::optimizer
