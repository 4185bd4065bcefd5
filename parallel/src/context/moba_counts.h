// SPDX-License-Identifier: Apache-2.0
// Statistics of block attention: those of this rank's calls, then reduced over all ranks.
#pragma once

#include "parallel/src/context/full_pairs.h"

#include <cstdint>
#include <vector>

namespace muster::parallel {

// Blocks of the longest sequence of the plan.
[[nodiscard]] std::int64_t most_blocks(const ContextPlan& plan, std::int64_t block);

[[nodiscard]] Status check_context_moba(
    const ContextCall& call,
    const kernels::MobaOptions& options,
    const kernels::MobaStatistics& statistics);

class ContextMobaCounts {
 public:
  ContextMobaCounts(
      const ContextCall& call,
      const kernels::MobaOptions& options,
      const kernels::MobaStatistics& wanted);

  [[nodiscard]] bool wants_rows() const {
    return !wanted_.selected_max_logit.empty() || !wanted_.nonfinite_rows.empty();
  }

  // Returns the outputs of a call on a segment of `blocks` blocks: the wanted statistics of choices
  // and, if `attended`, of attention. Valid until the next call.
  [[nodiscard]] kernels::MobaStatistics segment_spans(std::int64_t blocks, bool attended);
  // Adds the values that the call has written.
  void add_segment();
  void add_rows(const RowCounts& rows);

  // Reduces over all ranks into the wanted statistics; `q` and `k` are this rank's.
  [[nodiscard]] Status share(std::span<const float> q, std::span<const float> k);

 private:
  struct Numbers {
    std::vector<float> max_logit;
    std::vector<float> gate_bound;
    std::vector<std::int64_t> nonfinite_rows;
    std::vector<std::int64_t> nonfinite_scores;
    std::vector<std::int64_t> margin_rows;
    std::vector<double> margin;              // mean of a segment, sum of all
    std::vector<std::int64_t> block_counts;  // [heads, blocks]

    Numbers(std::size_t heads, std::size_t blocks);
  };

  Status share_sums();
  Status share_maxima();
  Status share_norms(std::span<const float> q, std::span<const float> k);
  void write_sink_share() const;

  const ContextCall& call_;
  kernels::MobaOptions options_;
  kernels::MobaStatistics wanted_;
  ContextSizes sizes_;
  Numbers all_;
  Numbers segment_;
  std::int64_t segment_blocks_{0};
};

}  // namespace muster::parallel
