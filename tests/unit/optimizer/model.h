// A small set of parameters with every kind of region, and gradients whose sums are exact in float,
// so that any number of ranks must end with the same bits.
#pragma once

#include "ranks.h"

#include <muster/common/random.h>
#include <muster/kernels/low_precision.h>

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

// What forward reads, in fp32.
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

// Parameters, states and step counter as bytes: NaN compares equal to itself here.
inline std::string everything(Optimizer& optimizer) {
  std::string bytes = std::to_string(optimizer.applied_steps());
  const auto append = [&bytes](std::span<const std::byte> data) {
    bytes.append(reinterpret_cast<const char*>(data.data()), data.size());  // NOLINT
  };
  for (const StateTensor& tensor : optimizer.state()) {
    append(tensor.data);
  }
  for (const Parameter& parameter : optimizer.parameters()) {
    append(std::as_bytes(parameter.value));
    append(std::as_bytes(parameter.value16));
  }
  return bytes;
}

}  // namespace muster::optimizer
