// SPDX-License-Identifier: Apache-2.0
// Ranks without a communicator: encodes each rank's lanes and reduces them as all_reduce would.
#pragma once

#include <muster/agent/verdict.h>

#include <algorithm>
#include <functional>
#include <vector>

namespace muster::agent {

inline ReducedLanes reduce(const LaneLayout& layout, const std::vector<LocalLanes>& ranks) {
  std::vector<double> sum(layout.sum_size(), 0.0);
  std::vector<double> max;
  for (const LocalLanes& rank : ranks) {
    std::vector<double> rank_sum(layout.sum_size());
    std::vector<double> rank_max(layout.max_size());
    encode(layout, rank, rank_sum, rank_max);
    std::transform(sum.begin(), sum.end(), rank_sum.begin(), sum.begin(), std::plus<>{});
    if (max.empty()) {
      max = rank_max;
    }
    std::transform(max.begin(), max.end(), rank_max.begin(), max.begin(), [](double a, double b) {
      return std::max(a, b);
    });
  }
  return decode(layout, sum, max);
}

// A healthy rank: one group, one layer of two heads, one MoE layer of three experts.
inline LaneLayout small_layout() {
  LaneLayout layout;
  layout.groups = 1;
  layout.heads = {2};
  layout.experts = {3};
  return layout;
}

inline LocalLanes healthy_rank() {
  LocalLanes lanes;
  lanes.squared_norm = {4.0};
  lanes.loss_sum = 20.0;
  lanes.token_count = 10.0;
  lanes.local_loss = 2.0;
  lanes.expert_counts = {{1.0, 2.0, 3.0}};
  lanes.max_logits = {{5.0F, 7.0F}};
  lanes.generation = 3;
  return lanes;
}

inline Command command(std::uint64_t id, CommandKind kind, double argument = 0.0) {
  Command out;
  out.id = CommandId{id};
  out.kind = kind;
  out.argument = argument;
  out.issuer = "operator";
  return out;
}

}  // namespace muster::agent
