// SPDX-License-Identifier: Apache-2.0
// A whole expert layer over several ranks, and the same in fp64 without ranks.
#pragma once

#include <muster/parallel/experts/layer.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace muster::parallel {

struct LayerCase {
  int ranks{2};
  int experts{4};
  int top_k{2};
  std::int64_t hidden{32};
  std::int64_t ffn{64};
  std::vector<std::int64_t> tokens{};  // [ranks]
  int padding{1};
  bool compact{false};
  EpBalance balance{};
  DType type{DType::kFloat32};
  EpNumerics numerics{EpNumerics::kPlain};
  // Expert of choice `choice` of token `token` of rank `rank`.
  std::function<int(int rank, std::int64_t token, int choice)> route;
  std::uint64_t seed{1};
};

// Inputs of all ranks, drawn from the seed; multiples of 1/64, which bf16 holds exactly.
struct LayerInputs {
  std::vector<std::vector<std::int32_t>> choices;             // [ranks][tokens, top_k]
  std::vector<std::vector<float>> gates, x, dy;               // [ranks]
  std::vector<float> gate_weights, up_weights, down_weights;  // [experts, ...]
};

[[nodiscard]] LayerInputs make_inputs(const LayerCase& layer);

// Results by rank and token, and the gradients of all experts.
struct LayerResult {
  std::vector<std::vector<double>> y, dx, dgates;  // [ranks]
  std::vector<double> gate_gradient, up_gradient, down_gradient;
};

// fp64, every expert applied where it is chosen.
[[nodiscard]] LayerResult dense_reference(const LayerCase& layer, const LayerInputs& inputs);

enum class LayerKind : std::uint8_t { kBalanced, kAllToAll };

// One forward and backward on ranks as threads. A Status of any rank is returned in `status`.
[[nodiscard]] LayerResult run_layer(
    const LayerCase& layer, const LayerInputs& inputs, LayerKind kind, Status& status);

// Largest difference over the reference's largest magnitude, and where it is.
struct Deviation {
  double relative{0};
  std::string where;
};

[[nodiscard]] Deviation deviation(const LayerResult& result, const LayerResult& reference);

}  // namespace muster::parallel
