// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/cpu/call.h"

#include <limits>

namespace muster::kernels {

FlashCounts::FlashCounts(std::int64_t heads)
    : max_logit(static_cast<std::size_t>(heads), -std::numeric_limits<float>::infinity()),
      nonfinite_rows(static_cast<std::size_t>(heads)),
      nan_rows(static_cast<std::size_t>(heads)) {}

void FlashCounts::merge(const FlashCounts& other) {
  for (std::size_t h = 0; h < max_logit.size(); ++h) {
    max_logit[h] = std::max(max_logit[h], other.max_logit[h]);
    nonfinite_rows[h] += other.nonfinite_rows[h];
    nan_rows[h] += other.nan_rows[h];
  }
}

std::vector<FlashItem> items_of(const AttentionCall& call) {
  std::vector<FlashItem> items;
  items.reserve(call.sequences.size() * static_cast<std::size_t>(call.kv_heads));
  for (const AttentionSequence& sequence : call.sequences) {
    for (std::int64_t head = 0; head < call.kv_heads; ++head) {
      items.push_back({sequence, head, call.group(), call.causal});
    }
  }
  return items;
}

std::int64_t forward_tile_keys(std::int64_t pair) {
  return pair == 2 ? 256 : 128;
}

}  // namespace muster::kernels
