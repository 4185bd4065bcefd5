// SPDX-License-Identifier: Apache-2.0
// Numbers of layers, heads and experts that decide which lanes and columns a model has.
#pragma once

#include <muster/agent/agent.h>

#include <vector>

namespace muster::agent {

// Equal on all ranks.
struct LayerColumns {
  std::vector<int> attention_ids;    // [attention layers] the number that metrics call each by
  std::vector<int> attention_heads;  // [attention layers]
  std::vector<int> experts;          // [MoE layers]
  bool modes{false};                 // the model has a schedule: an attention mode per layer
  // [attention layers], 0 for a layer that is never under block attention; empty if none ever is.
  std::vector<int> moba_heads;
  std::size_t ep_layers{0};
  int expert_ranks{0};
};

[[nodiscard]] LayerColumns layer_columns(const ModelInfo& model);

}  // namespace muster::agent
