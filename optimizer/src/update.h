// The two update rules on one shard. No communication, no allocation after the first call.
#pragma once

#include "src/routing.h"
#include "src/shard.h"

#include <muster/kernels/optimizer_kernels.h>
#include <muster/optimizer/optimizer.h>

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace muster::optimizer {

// What an update needs of the step; equal on all ranks.
struct UpdateStep {
  double learning_rate{0};   // of the schedule, before the route's factor
  double gradient_scale{1};  // multiplies gradients as they are read
  std::int64_t step{1};      // 1-based
};

[[nodiscard]] kernels::UpdateStatistics update_adamw(
    Shard& shard,
    const RoutedParameter& parameter,
    const AdamWOptions& options,
    const UpdateStep& step);

// Scratch memory of update_muon.
struct MuonScratch {
  std::vector<float> direction;
  std::vector<float> workspace;
};

// Every whole matrix of the shard: M <- mu M + G; U = G + mu M (or M without Nesterov);
// O = NewtonSchulz(U); W <- W (1 - lr wd); W <- W - lr rms_scale sqrt(max(rows, cols)) O.
[[nodiscard]] kernels::UpdateStatistics update_muon(
    Shard& shard,
    const RoutedParameter& parameter,
    const MuonOptions& options,
    std::span<const std::array<double, 3>> coefficients,
    const UpdateStep& step,
    MuonScratch& scratch);

// Adds the statistics of `count` elements to their group's: sums add, maxima take the larger.
void accumulate(
    GroupUpdateStatistics& group, std::size_t count, const kernels::UpdateStatistics& part);

}  // namespace muster::optimizer
