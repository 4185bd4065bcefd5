// SPDX-License-Identifier: Apache-2.0
// Names, shapes, routes and initial values of the model's parameters.
//
//   embedding [256, d] · per layer: attention.norm [d], attention.{wq,wk,wv,wo} [d, d], moe.norm
//   [d], moe.router [E, d], moe.experts.{gate,up} [E_local, f, d], moe.experts.down [E_local, d, f]
//   · norm [d] · head [256, d]
#pragma once

#include "trainer/moe_lm/src/options.h"

#include <muster/optimizer/optimizer.h>

#include <string>
#include <vector>

namespace muster::moe_lm {

// "layers.<layer>.<part>"
[[nodiscard]] std::string layer_name(std::int64_t layer, const std::string& part);

[[nodiscard]] std::vector<optimizer::ParameterSpec> parameter_specs(
    const ModelShape& shape, int ep_size, const UpdateOptions& update = {});

// Routes hidden and expert matrices to the rule of --optimizer (Muon by default), and embedding,
// head, router and norms to AdamW, or to the same rule if it is neither Muon nor AdamW.
[[nodiscard]] optimizer::OptimizerOptions optimizer_options(const TrainOptions& options);

// Fills all parameters on rank `ep_rank` of `ep_size`. Every value depends only on the seed, the
// name and its index in the global tensor, not on the world size or the placement of experts.
[[nodiscard]] Status set_initial_values(
    optimizer::Optimizer& optimizer, const ModelShape& shape, std::uint64_t seed, int ep_rank);

}  // namespace muster::moe_lm
