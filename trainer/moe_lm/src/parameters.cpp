// SPDX-License-Identifier: Apache-2.0
#include "trainer/moe_lm/src/parameters.h"

#include <muster/common/hash.h>
#include <muster/common/random.h>

#include <cmath>
#include <span>
#include <utility>

namespace muster::moe_lm {
namespace {

using optimizer::Placement;
using optimizer::Rule;

std::uint64_t stream_of(const std::string& name) {
  return hash64(std::as_bytes(std::span{name.data(), name.size()}));
}

void fill_normal(
    std::span<float> values, std::uint64_t seed, const std::string& name, double scale) {
  Random random{seed, stream_of(name)};
  for (float& value : values) {
    value = static_cast<float>(random.normal() * scale);
  }
}

// Residual branches end in wo and down, which start smaller so that the variance of the stream does
// not grow with depth. The head starts near uniform output, the embedding at the scale of the
// norms.
double initial_scale(const std::string& name, const ModelShape& shape, std::int64_t fan_in) {
  const double plain = 1.0 / std::sqrt(static_cast<double>(fan_in));
  if (name == "embedding") {
    return 0.5;
  }
  if (name == "head" || name.ends_with("router")) {
    return 0.1 * plain;
  }
  if (name.ends_with("wo") || name.ends_with("down")) {
    return plain / std::sqrt(2.0 * static_cast<double>(shape.layers));
  }
  return plain;
}

}  // namespace

std::string layer_name(std::int64_t layer, const std::string& part) {
  return "layers." + std::to_string(layer) + "." + part;
}

std::vector<optimizer::ParameterSpec> parameter_specs(
    const ModelShape& shape, int ep_size, const UpdateOptions& update) {
  const std::int64_t d = shape.d_model;
  const std::int64_t f = shape.ffn;
  const std::int64_t local = shape.experts / ep_size;
  std::vector<optimizer::ParameterSpec> specs;
  const auto push = [&](std::string name, std::vector<std::int64_t> dims, Placement placement) {
    optimizer::ParameterSpec spec;
    spec.name = std::move(name);
    spec.shape = std::move(dims);
    spec.placement = placement;
    spec.dtype = update.parameter_type;
    specs.push_back(std::move(spec));
  };
  push("embedding", {ModelShape::kVocab, d}, Placement::kReplicated);
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    const auto add = [&](const char* part, std::vector<std::int64_t> dims, Placement placement) {
      push(layer_name(layer, part), std::move(dims), placement);
    };
    add("attention.norm", {d}, Placement::kReplicated);
    for (const char* projection :
         {"attention.wq", "attention.wk", "attention.wv", "attention.wo"}) {
      add(projection, {d, d}, Placement::kReplicated);
      // The rows of q, k and v are heads; those of wo are the residual stream's.
      if (update.per_head_muon && !specs.back().name.ends_with("wo")) {
        specs.back().blocks = {{shape.head_dim()}, shape.heads, false};
      }
    }
    add("moe.norm", {d}, Placement::kReplicated);
    add("moe.router", {shape.experts, d}, Placement::kReplicated);
    add("moe.experts.gate", {local, f, d}, Placement::kExpert);
    add("moe.experts.up", {local, f, d}, Placement::kExpert);
    add("moe.experts.down", {local, d, f}, Placement::kExpert);
    if (shape.shared_experts > 0) {
      const std::int64_t wide = shape.shared_experts * f;
      add("moe.shared.gate", {wide, d}, Placement::kReplicated);
      add("moe.shared.up", {wide, d}, Placement::kReplicated);
      add("moe.shared.down", {d, wide}, Placement::kReplicated);
    }
  }
  push("norm", {d}, Placement::kReplicated);
  push("head", {ModelShape::kVocab, d}, Placement::kReplicated);
  return specs;
}

optimizer::OptimizerOptions optimizer_options(const TrainOptions& options) {
  const UpdateOptions& update = options.update;
  const bool matrices_only = update.rule == Rule::kMuon || update.rule == Rule::kAdamW;
  const Rule rest = matrices_only ? Rule::kAdamW : update.rule;
  const double decay = update.weight_decay;
  optimizer::OptimizerOptions chosen;
  chosen.routes = {
      {"embedding", rest, "embedding", 0.0, 1.0, update.state_type},
      {"head", rest, "head", decay, 1.0, update.state_type},
      {"*norm", rest, "norm", 0.0, 1.0, update.state_type},
      {"*.router", rest, "router", 0.0, 1.0, update.state_type},
      {"*.attention.w*", update.rule, "attention", decay, 1.0, update.state_type},
      {"*.moe.experts.*", update.rule, "experts", decay, 1.0, update.state_type},
      {"*.moe.shared.*", update.rule, "experts", decay, 1.0, update.state_type, true},
  };
  chosen.schedule.learning_rate = options.learning_rate;
  chosen.schedule.warmup_steps = options.warmup;
  chosen.schedule.total_steps = options.steps;
  chosen.schedule.kind = update.schedule;
  if (update.schedule == optimizer::ScheduleKind::kWsd) {
    chosen.schedule.cooldown_steps = update.cooldown > 0 ? update.cooldown : options.steps / 5;
  }
  chosen.clip_norm = options.clip_norm;
  chosen.muon = update.muon;
  chosen.muon.momentum = update.momentum.value_or(chosen.muon.momentum);
  chosen.momentum.momentum = update.momentum.value_or(chosen.momentum.momentum);
  chosen.adamw.beta2 = update.adam_beta2;
  chosen.adam.beta2 = update.adam_beta2;
  chosen.layout = update.layout;
  chosen.overlap = update.overlap;
  chosen.bucket_bytes = update.bucket_bytes;
  chosen.seed = options.seed;
  if (update.zclip) {
    chosen.clipping.zclip.emplace();
  }
  if (update.agc > 0) {
    chosen.clipping.agc.emplace();
    chosen.clipping.agc->factor = update.agc;
  }
  return chosen;
}

Status set_initial_values(
    optimizer::Optimizer& optimizer, const ModelShape& shape, std::uint64_t seed, int ep_rank) {
  const auto parameters = optimizer.parameters();
  for (std::size_t index = 0; index < parameters.size(); ++index) {
    const optimizer::ParameterSpec& spec = parameters[index].spec;
    std::vector<float> values(parameters[index].gradient.size(), 1.0F);
    const double scale = initial_scale(spec.name, shape, spec.shape.back());
    if (spec.placement == Placement::kExpert) {
      const std::int64_t local = spec.shape.front();
      const std::size_t matrix = values.size() / static_cast<std::size_t>(local);
      for (std::int64_t expert = 0; expert < local; ++expert) {
        const std::int64_t global = ep_rank * local + expert;
        fill_normal(
            std::span{values}.subspan(static_cast<std::size_t>(expert) * matrix, matrix),
            seed,
            spec.name + "/" + std::to_string(global),
            scale);
      }
    } else if (spec.shape.size() > 1) {
      fill_normal(values, seed, spec.name, scale);
    }
    MUSTER_RETURN_IF_ERROR(optimizer.set_values(index, values).context(spec.name));
  }
  return {};
}

}  // namespace muster::moe_lm
