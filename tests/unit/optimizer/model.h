// SPDX-License-Identifier: Apache-2.0
// A small set of parameters with every kind of region, and gradients whose sums are exact in float,
// so that any number of ranks must end with the same bits.
#pragma once

#include "tests/unit/optimizer/ranks.h"

#include <muster/common/random.h>
#include <muster/kernels/low_precision.h>

#include <cstring>
#include <string>
#include <vector>

namespace muster::optimizer {

inline std::vector<ParameterSpec> small_model() {
  return {
      {"embedding", {13, 5}, Placement::kReplicated},
      {"norm", {7}, Placement::kReplicated},
      {"wq", {8, 6}, Placement::kReplicated},
      {"wk", {8, 6}, Placement::kReplicated},
      {"wide", {4, 20}, Placement::kReplicated},
      {"tall", {20, 4}, Placement::kReplicated},
      {"experts.up", {3, 4, 6}, Placement::kExpert},
      {"experts.bias", {3, 6}, Placement::kExpert},
  };
}

inline OptimizerOptions small_options() {
  OptimizerOptions options;
  options.routes = {
      {"embedding", Rule::kAdamW, "embedding", 0.1, 1.0},
      {"norm", Rule::kAdamW, "norm", 0.0, 0.5},
      {"experts.bias", Rule::kAdamW, "experts", 0.0, 1.0},
      {"experts.*", Rule::kMuon, "experts", 0.1, 1.0},
      {"w*", Rule::kMuon, "hidden", 0.1, 1.0},
      {"tall", Rule::kMuon, "hidden", 0.1, 2.0},
  };
  return options;
}

inline constexpr Layout kLayouts[] = {
    Layout::kWholeMatrices,
    Layout::kFlatRedundant,
    Layout::kFlatOwner,
    Layout::kRowShards,
    Layout::kReplicated,
};

// Shapes that divide by nothing: 18 rows over 8 ranks, primes, fewer matrices than ranks, blocks in
// one and in several runs, stacks, and a rule of every kind.
inline std::vector<ParameterSpec> uneven_model() {
  std::vector<ParameterSpec> specs = {
      {"embedding", {31, 17}, Placement::kReplicated},
      {"norm", {13}, Placement::kReplicated},
      {"w18", {18, 23}, Placement::kReplicated},
      {"w29", {29, 37}, Placement::kReplicated},
      {"heads", {20, 19}, Placement::kReplicated},
      {"qkv", {21, 11}, Placement::kReplicated},
      {"grouped", {24, 7}, Placement::kReplicated},
      {"stack", {5, 9, 14}, Placement::kReplicated},
      {"gain", {41}, Placement::kReplicated},
      {"scale", {301}, Placement::kReplicated},
      {"mix", {3, 67}, Placement::kReplicated},
      {"rate", {53}, Placement::kReplicated},
      {"experts.up", {3, 14, 6}, Placement::kExpert},
      {"experts.bias", {3, 6}, Placement::kExpert},
  };
  specs[4].blocks = {{5}, 4, false};
  specs[5].blocks = {{13, 4, 4}, 1, false};
  specs[6].blocks = {{4, 2, 2}, 3, true};
  return specs;
}

inline OptimizerOptions uneven_options(Layout layout) {
  OptimizerOptions options;
  options.routes = {
      {"embedding", Rule::kAdamW, "embedding", 0.1, 1.0},
      {"norm", Rule::kAdamW, "norm", 0.0, 0.5},
      {"gain", Rule::kSgd, "vectors", 0.1, 1.0},
      {"scale", Rule::kMomentum, "vectors", 0.1, 1.0},
      {"mix", Rule::kRmsProp, "vectors", 0.1, 1.0},
      {"rate", Rule::kAdam, "vectors", 0.1, 1.0},
      {"experts.bias", Rule::kAdamW, "experts", 0.0, 1.0},
      {"experts.*", Rule::kMuon, "experts", 0.1, 1.0},
      {"*", Rule::kMuon, "hidden", 0.1, 1.0},
  };
  options.layout = layout;
  options.cut_granularity = 32;
  return options;
}

// Large enough for 8-bit states, units that end within a block, one parameter that stays fp32.
inline std::vector<ParameterSpec> large_model(DType dtype = DType::kFloat32) {
  return {
      {"embedding", {131, 67}, Placement::kReplicated, dtype},
      {"norm", {13}, Placement::kReplicated, dtype},
      {"w", {96, 64}, Placement::kReplicated, dtype},
      {"stack", {3, 70, 61}, Placement::kReplicated, dtype},
      {"scale", {4100}, Placement::kReplicated, dtype},
      {"mix", {5003}, Placement::kReplicated, dtype},
      {"rate", {4099}, Placement::kReplicated, dtype},
      {"experts.up", {2, 75, 40}, Placement::kExpert, dtype},
      {"experts.bias", {2, 2100}, Placement::kExpert, dtype},
  };
}

inline OptimizerOptions large_options(Layout layout, StateType state) {
  OptimizerOptions options;
  options.routes = {
      {"embedding", Rule::kAdamW, "embedding", 0.1, 1.0, state},
      {"norm", Rule::kAdamW, "vectors", 0.0, 0.5, state},
      {"scale", Rule::kMomentum, "vectors", 0.1, 1.0, state},
      {"mix", Rule::kRmsProp, "vectors", 0.1, 1.0, state},
      {"rate", Rule::kAdam, "vectors", 0.1, 1.0, state},
      {"experts.bias", Rule::kAdamW, "experts", 0.0, 1.0, state},
      {"*", Rule::kMuon, "hidden", 0.1, 1.0, state},
  };
  options.layout = layout;
  options.seed = 99;
  return options;
}

// Multiples of 1/1024 below 1: thousands of them add up without rounding in any order.
inline float exact_value(Random& random) {
  return static_cast<float>(static_cast<double>(random.below(2047)) - 1023.0) / 1024.0F;
}

inline void set_initial_values(Optimizer& optimizer) {
  Random random{17};
  for (std::size_t index = 0; index < optimizer.parameters().size(); ++index) {
    std::vector<float> values(optimizer.parameters()[index].gradient.size());
    for (float& value : values) {
      value = exact_value(random);
    }
    EXPECT_TRUE(optimizer.set_values(index, values).ok());
  }
}

// The gradients of one of the slices a step's batch is cut into, added up.
inline void add_slice_gradients(Optimizer& optimizer, int step, int slice) {
  Random random{static_cast<std::uint64_t>(step) * 1000 + static_cast<std::uint64_t>(slice)};
  for (Parameter& parameter : optimizer.parameters()) {
    for (float& gradient : parameter.gradient) {
      gradient += exact_value(random);
    }
  }
}

// The values that forward reads, in fp32.
inline std::vector<std::vector<float>> values_of(Optimizer& optimizer) {
  std::vector<std::vector<float>> values;
  for (const Parameter& parameter : optimizer.parameters()) {
    values.emplace_back(parameter.value.begin(), parameter.value.end());
    if (!parameter.value16.empty()) {
      values.back().resize(parameter.value16.size());
      kernels::widen(parameter.spec.dtype, parameter.value16, values.back());
    }
  }
  return values;
}

// Empty when both are the same bits, else where they first are not.
inline std::string difference(
    const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b) {
  if (a.size() != b.size()) {
    return "different numbers of parameters";
  }
  for (std::size_t p = 0; p < a.size(); ++p) {
    if (a[p].size() != b[p].size()) {
      return "parameter " + std::to_string(p) + " has different sizes";
    }
    for (std::size_t i = 0; i < a[p].size(); ++i) {
      if (std::memcmp(&a[p][i], &b[p][i], sizeof(float)) != 0) {
        return "parameter " + std::to_string(p) + " at " + std::to_string(i) + ": " +
               std::to_string(a[p][i]) + " and " + std::to_string(b[p][i]);
      }
    }
  }
  return {};
}

inline StepDecision decide(double gradient_scale, double learning_rate) {
  StepDecision decision;
  decision.gradient_scale = gradient_scale;
  decision.learning_rate = learning_rate;
  return decision;
}

inline StepDecision skip_step() {
  StepDecision decision = decide(1.0, 0.01);
  decision.skip = true;
  return decision;
}

// Everything that follows backward, as the agent does it.
inline void finish_step(Optimizer& optimizer, const StepDecision& decision) {
  const Status reduced = optimizer.reduce_gradients(soon());
  ASSERT_TRUE(reduced.ok()) << reduced.to_string();
  const Status applied = optimizer.apply(decision, soon());
  ASSERT_TRUE(applied.ok()) << applied.to_string();
  const Status gathered = optimizer.gather_parameters(soon());
  ASSERT_TRUE(gathered.ok()) << gathered.to_string();
  optimizer.zero_gradients();
}

// One step with the gradients of a slice, clipped by nothing, at a rate of 0.01.
inline void step_with(Optimizer& optimizer, int step, int slice) {
  add_slice_gradients(optimizer, step, slice);
  finish_step(optimizer, decide(1.0, 0.01));
}

// Parameters, states and step counter as bytes: NaN compares equal to itself here.
inline std::string everything(Optimizer& optimizer) {
  std::string bytes = std::to_string(optimizer.applied_steps());
  const auto append = [&bytes](std::span<const std::byte> data) {
    bytes.append(reinterpret_cast<const char*>(data.data()), data.size());  // NOLINT
  };
  for (const TensorPiece& tensor : optimizer.state()) {
    append(tensor.data);
  }
  for (const Parameter& parameter : optimizer.parameters()) {
    append(std::as_bytes(parameter.value));
    append(std::as_bytes(parameter.value16));
  }
  return bytes;
}

}  // namespace muster::optimizer
