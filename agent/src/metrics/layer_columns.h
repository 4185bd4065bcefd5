// What layers of a model have lanes and columns beyond logits and expert counts.
#pragma once

#include <muster/agent/agent.h>

#include <vector>

namespace muster::agent {

// Equal on all ranks.
struct LayerColumns {
  std::vector<int> attention_ids;  // [attention layers] the number that metrics call each by
  bool modes{false};               // An attention mode per layer: the model has a schedule.
  std::vector<int> moba_heads;     // [attention layers], 0: never under it; empty: none ever is
  std::size_t ep_layers{0};
  int expert_ranks{0};
};

[[nodiscard]] LayerColumns layer_columns(const ModelInfo& model);

}  // namespace muster::agent
