// SPDX-License-Identifier: Apache-2.0
// Statistics of an applied update per norm group, taken inside the update pass.
#pragma once

#include <muster/kernels/update_statistics.h>

#include <array>
#include <cstdint>

namespace muster::optimizer {

// Statistics of the matrix blocks that Muon orthogonalised.
struct BlockStatistics {
  std::int64_t block_count{0};
  double direction_norm_sum{0};       // |U|_F before Newton-Schulz
  double effective_rank_sum{0};       // over the short side: 1 is full rank
  double effective_rank_min{0};       // 0 if block_count is 0
  double orthogonality_error_sum{0};  // |OO^T - I|_F / sqrt(short side)
  double orthogonality_error_max{0};
  std::int64_t nonfinite_blocks{0};   // O held NaN or infinity: the block kept its values
  std::int64_t recomputed_blocks{0};  // the chosen Newton-Schulz form diverged, see kernels
};

// The order is that of the lanes (agent): sums first, then maxima and minima.
inline constexpr std::array kBlockStatistics{
    kernels::count_of(&BlockStatistics::block_count),
    kernels::sum_of(&BlockStatistics::direction_norm_sum, kernels::Tolerance::kLenient),
    kernels::sum_of(&BlockStatistics::effective_rank_sum, kernels::Tolerance::kLenient),
    kernels::sum_of(&BlockStatistics::orthogonality_error_sum, kernels::Tolerance::kLenient),
    kernels::count_of(&BlockStatistics::nonfinite_blocks),
    kernels::count_of(&BlockStatistics::recomputed_blocks),
    kernels::max_of(&BlockStatistics::orthogonality_error_max, kernels::Tolerance::kLenient),
    kernels::min_of(
        &BlockStatistics::effective_rank_min,
        &BlockStatistics::block_count,
        kernels::Tolerance::kLenient)};
static_assert(kernels::covers(kBlockStatistics), "every statistic has a row");

// Statistics of a group over the elements and blocks this rank owns: summed over ranks, every
// element and block counts once. All zero after a skipped step.
struct GroupUpdateStatistics {
  std::int64_t element_count{0};
  kernels::UpdateStatistics elements;
  BlockStatistics blocks;

  // Combines every member with that of `other`; NaN survives in sums, maxima and minima.
  void add(const GroupUpdateStatistics& other) {
    element_count += other.element_count;
    elements.add(other.elements);
    kernels::combine(kBlockStatistics, blocks, other.blocks);
  }
};

}  // namespace muster::optimizer
