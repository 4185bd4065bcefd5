// SPDX-License-Identifier: Apache-2.0
// Full attention of the pairs of a ring.
#pragma once

#include "parallel/src/context/ring.h"

#include <cstdint>
#include <vector>

namespace muster::parallel {

// Statistics of a rank's rows over the partial results of several pairs. A row that is not finite
// in more than one of them counts once.
struct RowCounts {
  std::vector<float> max_logit;    // [heads]
  std::vector<std::uint8_t> rows;  // [heads, rows of the shard] 1 if not finite

  explicit RowCounts(const ContextSizes& sizes);

  // Returns the number of rows that are not finite, per head.
  [[nodiscard]] std::vector<std::int64_t> totals(const ContextSizes& sizes) const;
};

// `counts` may be null.
[[nodiscard]] Status attend_full_pair(
    const ContextCall& call,
    const RingPair& pair,
    const kernels::AttentionOutputs& part,
    RowCounts* counts);

[[nodiscard]] Status attend_full_pair_backward(
    const ContextCall& call, const RingPair& pair, const kernels::AttentionGradients& part);

}  // namespace muster::parallel
