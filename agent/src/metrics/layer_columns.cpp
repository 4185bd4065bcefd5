// SPDX-License-Identifier: Apache-2.0
#include "agent/src/metrics/layer_columns.h"

#include "agent/src/attention/change.h"

#include <algorithm>

namespace muster::agent {
namespace {

std::vector<int> moba_heads(const ModelInfo& model) {
  std::vector<int> heads;
  const auto layers = static_cast<std::int64_t>(model.attention.size());
  for (std::int64_t layer = 0; layer < layers && model.attention_schedule; ++layer) {
    const bool some = uses_moba(*model.attention_schedule, layer, layers);
    heads.push_back(some ? model.attention[static_cast<std::size_t>(layer)].heads : 0);
  }
  const bool any = std::any_of(heads.begin(), heads.end(), [](int count) { return count > 0; });
  return any ? heads : std::vector<int>{};
}

}  // namespace

LayerColumns layer_columns(const ModelInfo& model) {
  LayerColumns columns;
  for (const optimizer::AttentionLayer& layer : model.attention) {
    columns.attention_ids.push_back(layer.layer);
    columns.attention_heads.push_back(layer.heads);
  }
  columns.experts = model.experts_per_layer;
  columns.modes = model.attention_schedule.has_value();
  columns.moba_heads = moba_heads(model);
  columns.expert_ranks = model.expert_ranks;
  columns.ep_layers = model.expert_ranks > 0 ? model.experts_per_layer.size() : 0;
  return columns;
}

}  // namespace muster::agent
