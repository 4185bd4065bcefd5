// SPDX-License-Identifier: Apache-2.0
// The update rules, elementwise, each one fused pass over one shard: reads gradient, fp32 master
// and states in their storage type, computes in fp32 registers, writes them back, writes the
// low-precision copy of the parameter and sums up the statistics of what passes through anyway.
//
// Formulas and their sources: docs/concepts/optimizers.md. The result for an element depends only
// on its own values, its global index and the step: shards can be cut anywhere (int8: at multiples
// of kQuantBlock).
//
// An element whose new parameter or state would not be finite keeps both, with an 8-bit state its
// whole block, and is counted (UpdateStatistics::withheld_count). So v does not become infinite,
// and one that already is stays so and moves nothing.
//
// With statistics off the sums are zero and cost nothing; the counts of the guard are always there.
#pragma once

#include <muster/kernels/low_precision.h>
#include <muster/kernels/update_statistics.h>

#include <cstdint>
#include <span>

namespace muster::kernels {

// One optimizer state of a shard. Does not own its memory.
struct StateView {
  StateType type{StateType::kFloat32};
  bool is_signed{true};     // map of kInt8Block
  void* data{nullptr};      // float, std::uint16_t (bf16) or std::uint8_t (codes) [count]
  float* absmax{nullptr};   // [ceil(count / 256)], kInt8Block only
  std::uint64_t tensor{0};  // RoundingKey::tensor of kBFloat16 and kInt8Block
};

// One shard. All of `count` elements.
struct UpdateTensors {
  float* parameter{nullptr};            // fp32 values, or master of a 16-bit parameter
  std::uint16_t* narrow_copy{nullptr};  // null: there is none
  DType narrow_type{DType::kBFloat16};
  const float* gradient{nullptr};
  StateView first;   // momentum, m; unused by SGD and RMSProp
  StateView second;  // v; RMSProp and Adam
  std::int64_t count{0};
  // Index of element 0, from the start of its quantisation unit with int8 states, a multiple of
  // kQuantBlock there; else global.
  std::int64_t first_index{0};
  // Global index of what first_index counts from; stochastic rounding uses their sum.
  std::int64_t index_base{0};
};

// Settings of the step that every rule needs.
struct UpdateStep {
  double learning_rate{0};
  double weight_decay{0};
  double gradient_scale{1};  // multiplies the gradient first: token normalisation, loss scale, clip
  std::int64_t step{1};      // 1-based count of applied updates: bias correction, rounding
  std::uint64_t seed{0};     // of stochastic rounding
  bool statistics{true};
  CodeRounding code_rounding{CodeRounding::kStochastic};  // of int8 states
};

// p <- p(1 - lr wd) - lr g
[[nodiscard]] UpdateStatistics sgd_update(const UpdateTensors& tensors, const UpdateStep& step);

struct MomentumFactors {
  double momentum{0.9};
  bool nesterov{false};
};

// g <- g + wd p; buf <- mu buf + g; p <- p - lr (nesterov ? g + mu buf : buf)
// (torch.optim.SGD with dampening 0; heavy-ball)
[[nodiscard]] UpdateStatistics momentum_update(
    const UpdateTensors& tensors, const UpdateStep& step, const MomentumFactors& factors);

struct RmsPropFactors {
  double alpha{0.99};
  double epsilon{1e-8};
};

// g <- g + wd p; v <- a v + (1 - a) g^2; p <- p - lr g / (sqrt(v) + eps)   (torch.optim.RMSprop)
[[nodiscard]] UpdateStatistics rmsprop_update(
    const UpdateTensors& tensors, const UpdateStep& step, const RmsPropFactors& factors);

struct AdamFactors {
  double beta1{0.9};
  double beta2{0.999};
  double epsilon{1e-8};
};

// g <- g + wd p, then as AdamW without its decay: L2 coupled with the moments (torch.optim.Adam).
[[nodiscard]] UpdateStatistics adam_update(
    const UpdateTensors& tensors, const UpdateStep& step, const AdamFactors& factors);

// p <- p(1 - lr wd); m <- b1 m + (1-b1) g; v <- b2 v + (1-b2) g^2;
// p <- p - lr (m / (1-b1^t)) / (sqrt(v / (1-b2^t)) + eps)   (torch.optim.AdamW's order)
// A zero denominator (no gradient yet and eps 0) moves nothing; so does |g| so small that g^2 is 0
// in fp32 while v is 0.
[[nodiscard]] UpdateStatistics adamw_update(
    const UpdateTensors& tensors, const UpdateStep& step, const AdamFactors& factors);

struct MuonMomentumFactors {
  double momentum{0.95};
  bool nesterov{true};
  bool ema{
      false};  // M <- mu M + (1 - mu) g, U = mu M + (1 - mu) g; else M <- mu M + g, U = g + mu M
};

// The first half of Muon: momentum, and the direction[count] that is to be orthogonalised (M itself
// without Nesterov; never an alias of M), NaN where the guard kept the momentum. Uses gradient and
// first only.
[[nodiscard]] UpdateStatistics muon_momentum_update(
    const UpdateTensors& tensors,
    const UpdateStep& step,
    const MuonMomentumFactors& factors,
    float* direction);

// The second half: p <- p(1 - lr wd) - lr scale O. `orthogonal`[count]. Uses parameter and
// narrow_copy only.
[[nodiscard]] UpdateStatistics muon_apply_update(
    const UpdateTensors& tensors, const UpdateStep& step, double scale, const float* orthogonal);

// values *= factor, and narrow_copy = round(values): QK-clip of rows, on master and copy alike.
void scale_elements(
    std::span<float> values,
    std::span<std::uint16_t> narrow_copy,  // empty: there is none
    DType narrow_type,
    double factor);

}  // namespace muster::kernels
