// SPDX-License-Identifier: Apache-2.0
// The largest single allocation of this process since the last reset: proof that a length announced
// by a peer is refused before memory is asked for.
#pragma once

#include <cstddef>

namespace muster::wire {

void reset_largest_allocation();
[[nodiscard]] std::size_t largest_allocation_bytes();

}  // namespace muster::wire
