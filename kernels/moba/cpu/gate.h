// SPDX-License-Identifier: Apache-2.0
// The gate: which blocks each query attends to.
#pragma once

#include "kernels/moba/cpu/call.h"
#include "kernels/moba/cpu/selection.h"

#include <cstdint>
#include <vector>

namespace muster::kernels {

// Scores that the gate saw, per query head.
struct MobaGateReport {
  std::vector<float> top;                 // largest score that is a number, or -inf
  std::vector<std::int64_t> nonfinite;    // scores
  std::vector<double> margin_sum;         // k-th less (k + 1)-th score
  std::vector<std::int64_t> margin_rows;  // queries that left a candidate out
};

// Writes the means of the blocks of `k` into means [kv_heads, total_blocks, dim].
void make_block_means(const MobaCall& call, const AttentionTensor& k, float* means);

// Fills the picks of `state` for all sequences that are not dense, and the report unless it is
// null.
void choose_blocks(
    const AttentionTensor& q,
    const float* means,
    MobaSelection::State& state,
    MobaGateReport* report);

}  // namespace muster::kernels
