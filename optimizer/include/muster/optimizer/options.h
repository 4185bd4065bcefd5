// Hyperparameters, with the defaults and why one would change them.
#pragma once

#include <muster/common/expected.h>
#include <muster/optimizer/parameter.h>

#include <cstdint>
#include <string>
#include <vector>

namespace muster::optimizer {

// torch.optim.AdamW's order: decay, moments, bias-corrected step. docs/optimizers.md has the
// formula.
struct AdamWOptions {
  double beta1{0.9};
  double beta2{0.95};
  double epsilon{1e-8};
};

// Newton-Schulz coefficient sets: X <- aX + bAX + cA^2X with A = XX^T.
enum class NewtonSchulzSet : std::uint8_t { kKeller, kYou, kPolarExpress, kClassicCubic };

[[nodiscard]] Expected<NewtonSchulzSet> parse_newton_schulz_set(const std::string& name);

// Moonlight's Muon (arXiv 2502.16982): heavy-ball momentum, Nesterov, decoupled decay before the
// step, update scaled by rms_scale * sqrt(max(rows, cols)).
struct MuonOptions {
  double momentum{0.95};
  bool nesterov{true};
  int newton_schulz_steps{5};
  NewtonSchulzSet newton_schulz_set{NewtonSchulzSet::kKeller};
  double rms_scale{0.2};
};

// Linear warmup from 0, cosine to final_ratio * peak at total_steps, then constant.
struct ScheduleOptions {
  double learning_rate{1e-3};
  std::int64_t warmup_steps{0};
  std::int64_t total_steps{1000};
  double final_ratio{0.1};
};

// The learning rate of the update with 0-based index `step`.
[[nodiscard]] double learning_rate_at(const ScheduleOptions& schedule, std::int64_t step);

struct OptimizerOptions {
  std::vector<RouteRule> routes;
  AdamWOptions adamw;
  MuonOptions muon;
  ScheduleOptions schedule;
  // Global gradient-norm clip, over the token-normalised gradient of all groups. 0: off.
  double clip_norm{1.0};
};

}  // namespace muster::optimizer
