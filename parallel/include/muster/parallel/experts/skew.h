// SPDX-License-Identifier: Apache-2.0
// Deprecated: include <muster/parallel/experts/synthetic_routing.h>. Removed after the next
// release.
#pragma once

#include <muster/parallel/experts/synthetic_routing.h>

namespace muster::parallel {

using SkewedRouting [[deprecated("use SyntheticRouting")]] = SyntheticRouting;

[[deprecated("use synthetic_gates")]] inline void gates_of_drawn(
    int top_k,
    std::span<const float> scores,
    std::span<const std::int32_t> choices,
    std::span<float> gates) {
  synthetic_gates(top_k, scores, choices, gates);
}

}  // namespace muster::parallel
