#include "src/parameters.h"

#include <muster/common/hash.h>
#include <muster/common/random.h>

#include <algorithm>
#include <cmath>
#include <span>

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

// Residual branches end in wo and down: they start smaller, so that the stream's variance does not
// grow with depth. The head starts near uniform output, the embedding at the norms' scale.
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

std::vector<optimizer::ParameterSpec> parameter_specs(const ModelShape& shape, int ep_size) {
  const std::int64_t d = shape.d_model;
  const std::int64_t f = shape.ffn;
  const std::int64_t local = shape.experts / ep_size;
  std::vector<optimizer::ParameterSpec> specs;
  specs.push_back({"embedding", {ModelShape::kVocab, d}, Placement::kReplicated});
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    const auto add = [&](const char* part, std::vector<std::int64_t> dims, Placement placement) {
      specs.push_back({layer_name(layer, part), std::move(dims), placement});
    };
    add("attention.norm", {d}, Placement::kReplicated);
    for (const char* projection :
         {"attention.wq", "attention.wk", "attention.wv", "attention.wo"}) {
      add(projection, {d, d}, Placement::kReplicated);
    }
    add("moe.norm", {d}, Placement::kReplicated);
    add("moe.router", {shape.experts, d}, Placement::kReplicated);
    add("moe.experts.gate", {local, f, d}, Placement::kExpert);
    add("moe.experts.up", {local, f, d}, Placement::kExpert);
    add("moe.experts.down", {local, d, f}, Placement::kExpert);
  }
  specs.push_back({"norm", {d}, Placement::kReplicated});
  specs.push_back({"head", {ModelShape::kVocab, d}, Placement::kReplicated});
  return specs;
}

optimizer::OptimizerOptions optimizer_options(const TrainOptions& options) {
  optimizer::OptimizerOptions chosen;
  chosen.routes = {
      {"embedding", Rule::kAdamW, "embedding", 0.0, 1.0},
      {"head", Rule::kAdamW, "head", 0.1, 1.0},
      {"*norm", Rule::kAdamW, "norm", 0.0, 1.0},
      {"*.router", Rule::kAdamW, "router", 0.0, 1.0},
      {"*.attention.w*", Rule::kMuon, "attention", 0.1, 1.0},
      {"*.moe.experts.*", Rule::kMuon, "experts", 0.1, 1.0},
  };
  chosen.schedule.learning_rate = options.learning_rate;
  chosen.schedule.warmup_steps = options.warmup;
  chosen.schedule.total_steps = options.steps;
  chosen.clip_norm = options.clip_norm;
  return chosen;
}

void set_initial_values(
    optimizer::Optimizer& optimizer, const ModelShape& shape, std::uint64_t seed, int ep_rank) {
  for (optimizer::Parameter& parameter : optimizer.parameters()) {
    const optimizer::ParameterSpec& spec = parameter.spec;
    if (spec.shape.size() == 1) {
      std::fill(parameter.value.begin(), parameter.value.end(), 1.0F);
      continue;
    }
    const double scale = initial_scale(spec.name, shape, spec.shape.back());
    if (spec.placement == Placement::kReplicated) {
      fill_normal(parameter.value, seed, spec.name, scale);
      continue;
    }
    const std::int64_t local = spec.shape.front();
    const std::size_t matrix = parameter.value.size() / static_cast<std::size_t>(local);
    for (std::int64_t expert = 0; expert < local; ++expert) {
      const std::int64_t global = ep_rank * local + expert;
      fill_normal(
          parameter.value.subspan(static_cast<std::size_t>(expert) * matrix, matrix),
          seed,
          spec.name + "/" + std::to_string(global),
          scale);
    }
  }
}

}  // namespace muster::moe_lm
