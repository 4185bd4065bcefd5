// SPDX-License-Identifier: Apache-2.0
// Former names of attention.h, for one release.
#pragma once

#include <muster/kernels/attention.h>

namespace muster::kernels {

[[deprecated("use attention_forward")]] [[nodiscard]] inline Status flash_attention_forward(
    const AttentionProblem& problem,
    AttentionInput q,
    AttentionInput k,
    AttentionInput v,
    AttentionOutput out,
    void* lse,
    const AttentionStatistics& statistics) {
  return attention_forward(problem, {q, k, v}, {out, lse}, statistics);
}

[[deprecated("use attention_backward")]] [[nodiscard]] inline Status flash_attention_backward(
    const AttentionProblem& problem,
    AttentionInput q,
    AttentionInput k,
    AttentionInput v,
    AttentionInput out,
    const void* lse,
    AttentionInput dout,
    const void* dlse,
    AttentionOutput dq,
    AttentionOutput dk,
    AttentionOutput dv) {
  return attention_backward(problem, {q, k, v}, {out, lse, dout, dlse, dq, dk, dv});
}

}  // namespace muster::kernels
