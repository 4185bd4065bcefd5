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

// What a hook may touch in the middle of a step, after the gradients were written.
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
  std::function<void(AgentOptions&)> adjust;  // Per rank, after the defaults.
  std::function<void(optimizer::OptimizerOptions&)> tune;
  // Empty: wq and wk [8, 4] under Muon in group "hidden", bias [9] under AdamW in group "rest".
  std::vector<optimizer::ParameterSpec> specs;
  std::optional<ModelInfo> model;  // Default: one attention layer of two heads, one MoE layer.
  std::function<void(StepContext&)> on_step;
  std::function<void(int rank, const Verdict&)> after_step;
};

struct RankResult {
  Status status;  // Of join, restore, the loop and finish.
  Ending ending{Ending::kContinue};
  std::int64_t first_step{0};
  std::vector<Verdict> verdicts;
  std::vector<float> parameters;  // All of them, in order.
  std::vector<float> trainer_tensor;
  std::string cursor;               // A trainer value: the number of steps it has run.
  std::vector<double> loss_scales;  // Of each step.
  std::int64_t applied_steps{0};
};

// What forward reads of a parameter, in fp32.
[[nodiscard]] std::vector<float> values_of(const optimizer::Parameter& parameter);

// Runs all ranks to their end.
[[nodiscard]] std::vector<RankResult> train(const GroupOptions& options);

using test::ScratchFolder;

}  // namespace muster::agent
