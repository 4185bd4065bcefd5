// A small set of parameters with every kind of region, and gradients whose sums are exact in float,
// so that any number of ranks must end with the same bits.
#pragma once

#include "ranks.h"

#include <muster/common/random.h>

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

// Multiples of 1/1024 below 1: thousands of them add up without rounding in any order.
inline float exact_value(Random& random) {
  return static_cast<float>(static_cast<double>(random.below(2047)) - 1023.0) / 1024.0F;
}

inline void set_initial_values(Optimizer& optimizer) {
  Random random{17};
  for (Parameter& parameter : optimizer.parameters()) {
    for (float& value : parameter.value) {
      value = exact_value(random);
    }
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

inline std::vector<std::vector<float>> values_of(Optimizer& optimizer) {
  std::vector<std::vector<float>> values;
  for (const Parameter& parameter : optimizer.parameters()) {
    values.emplace_back(parameter.value.begin(), parameter.value.end());
  }
  return values;
}

}  // namespace muster::optimizer
