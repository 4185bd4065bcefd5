// SPDX-License-Identifier: Apache-2.0
// Ranks as threads that train a tiny quadratic model under real agents and a real optimizer.
#pragma once

#include "tests/support/scratch_folder.h"

#include <muster/agent/agent.h>

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace muster::agent {

// State that a hook may change in the middle of a step, after the gradients were written.
struct StepContext {
  Agent& agent;
  optimizer::Optimizer& optimizer;
  int rank{0};
  std::int64_t step{0};
  double loss_sum{0};
  std::int64_t tokens{0};
  bool inject_nan{false};
};

struct GroupOptions {
  int ranks{2};
  std::int64_t total_steps{10};
  std::function<void(AgentOptions&)> adjust;  // per rank, after the defaults
  std::function<void(optimizer::OptimizerOptions&)> tune;
  // By default wq and wk [8, 4] under Muon in group "hidden", bias [9] under AdamW in group "rest".
  std::vector<optimizer::ParameterSpec> specs;
  std::optional<ModelInfo> model;  // by default one attention layer of two heads, one MoE layer
  std::function<void(StepContext&)> on_step;
  std::function<void(int rank, const Verdict&)> after_step;
};

struct RankResult {
  Status status;  // first error of join, restore, the loop and finish
  Ending ending{Ending::kContinue};
  std::int64_t first_step{0};
  std::vector<Verdict> verdicts;
  std::vector<float> parameters;  // all, in order
  std::vector<float> trainer_tensor;
  std::string cursor;               // a trainer value: the number of steps that were run
  std::vector<double> loss_scales;  // per step
  std::int64_t applied_steps{0};
};

// The values that forward reads from a parameter, in fp32.
[[nodiscard]] std::vector<float> values_of(const optimizer::Parameter& parameter);

// Runs all ranks to their end.
[[nodiscard]] std::vector<RankResult> train(const GroupOptions& options);

using test::ScratchFolder;

}  // namespace muster::agent
