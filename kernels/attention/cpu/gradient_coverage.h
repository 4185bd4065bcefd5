// SPDX-License-Identifier: Apache-2.0
// Tokens that a loss mask leaves with a gradient.
#pragma once

#include "kernels/attention/cpu/call.h"

#include <vector>

namespace muster::kernels {

// Returns [total_q]: whether any head of dout is non-zero there. NaN is non-zero.
[[nodiscard]] std::vector<bool> tokens_with_gradient(
    const AttentionCall& call, const AttentionTensor& dout);

}  // namespace muster::kernels
