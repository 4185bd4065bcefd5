// SPDX-License-Identifier: Apache-2.0
// Sizes of known layers; every flag overrides them.
#include "cli/plan/ep/ep.h"

#include <array>

namespace muster::cli {

namespace {

using parallel::EpLayerShape;

EpLayerShape layer_of(int experts, int ranks, int top_k, std::int64_t tokens) {
  EpLayerShape layer;
  layer.shape.experts = experts;
  layer.shape.ranks = ranks;
  layer.shape.top_k = top_k;
  layer.shape.tokens_max = tokens;
  layer.shape.padding = 128;
  layer.hidden = 7168;
  layer.ffn = 2048;
  layer.type = DType::kBFloat16;
  return layer;
}

// Decoding: few tokens, and just enough slots for hot experts.
EpLayerShape inference() {
  EpLayerShape layer = layer_of(384, 8, 8, 256);
  layer.shape.slots = 4;
  layer.shape.padding = 16;
  layer.inference = true;
  return layer;
}

EpLayerShape laptop() {
  EpLayerShape layer = layer_of(8, 2, 2, 512);
  layer.shape.padding = 1;
  layer.hidden = 128;
  layer.ffn = 256;
  layer.type = DType::kFloat32;
  return layer;
}

}  // namespace

std::span<const EpPreset> ep_presets() {
  static const std::array kPresets{
      EpPreset{
          "moe_384", "384 experts, top 8, on 8 ranks, 8192 tokens each", layer_of(384, 8, 8, 8192)},
      EpPreset{"moe_384_wide", "the same on 64 ranks", layer_of(384, 64, 8, 8192)},
      EpPreset{"moe_896", "896 experts, top 16, on 8 ranks", layer_of(896, 8, 16, 8192)},
      EpPreset{"moe_896_wide", "the same on 64 ranks", layer_of(896, 64, 16, 8192)},
      EpPreset{"inference", "moe_384 decoding 256 tokens per rank, 4 slots", inference()},
      EpPreset{"laptop", "8 small fp32 experts, top 2, on 2 ranks", laptop()}};
  return kPresets;
}

Expected<EpPreset> find_ep_preset(const std::string& name) {
  std::string known;
  for (const EpPreset& preset : ep_presets()) {
    if (preset.name == name) {
      return preset;
    }
    known += (known.empty() ? "" : ", ") + std::string{preset.name};
  }
  return invalid_argument("--preset must be one of ", known, ", got '", name, "'");
}

}  // namespace muster::cli
