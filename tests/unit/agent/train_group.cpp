// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/agent/train_group.h"

#include <muster/comm/backends.h>
#include <muster/kernels/low_precision.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <thread>

namespace muster::agent {
namespace {

optimizer::OptimizerOptions optimizer_options() {
  optimizer::OptimizerOptions options;
  options.routes = {
      {"w*", optimizer::Rule::kMuon, "hidden", 0.1, 1.0},
      {"*", optimizer::Rule::kAdamW, "rest", 0.0, 1.0}};
  options.schedule.learning_rate = 0.02;
  options.schedule.warmup_steps = 3;
  options.schedule.total_steps = 40;
  return options;
}

std::vector<optimizer::ParameterSpec> specs() {
  using optimizer::Placement;
  return {
      {"wq", {8, 4}, Placement::kReplicated},
      {"wk", {8, 4}, Placement::kReplicated},
      {"bias", {9}, Placement::kReplicated}};
}

ModelInfo model() {
  ModelInfo info;
  info.attention = {{0, 2, 4, "wq", "wk"}};
  info.experts_per_layer = {3};
  return info;
}

// Differs by element, rank and step, so that a step on wrong data shows in the parameters.
float target(std::size_t element, int rank, std::int64_t step) {
  const double phase =
      0.7 * static_cast<double>(element) + 1.3 * rank + 0.2 * static_cast<double>(step);
  return static_cast<float>(std::sin(phase));
}

double write_gradients(
    optimizer::Optimizer& optimizer, int rank, std::int64_t step, double loss_scale) {
  double loss = 0.0;
  std::size_t element = 0;
  for (std::size_t p = 0; p < optimizer.parameters().size(); ++p) {
    EXPECT_TRUE(optimizer.wait_gathered(p, Deadline::after(std::chrono::seconds{20})).ok());
    const optimizer::Parameter& parameter = optimizer.parameters()[p];
    const std::vector<float> values = values_of(parameter);
    for (std::size_t i = 0; i < values.size(); ++i, ++element) {
      const float error = values[i] - target(element, rank, step);
      parameter.gradient[i] += error * static_cast<float>(loss_scale);
      loss += 0.5 * static_cast<double>(error) * static_cast<double>(error);
    }
  }
  return loss;
}

// As backward would, last parameter first.
void announce_gradients(optimizer::Optimizer& optimizer) {
  for (std::size_t p = optimizer.parameters().size(); p > 0; --p) {
    optimizer.gradient_ready(p - 1);
  }
}

void run_step(
    const GroupOptions& group,
    Agent& agent,
    optimizer::Optimizer& optimizer,
    StepContext& context) {
  agent.begin_step();
  {
    const auto timer = agent.time(Phase::kBackward);
    context.loss_sum = write_gradients(optimizer, context.rank, context.step, agent.loss_scale());
  }
  context.tokens = 1 + context.rank;
  if (!group.model) {
    const std::vector<float> logits{static_cast<float>(context.step), 2.0F};
    agent.record_max_logits(0, logits);
  }
  const std::vector<std::int64_t> counts{1, 2, context.rank};
  agent.record_expert_counts(0, counts);
  if (group.on_step) {
    group.on_step(context);
  }
  if (context.inject_nan) {
    optimizer.parameters()[0].gradient[1] = std::numeric_limits<float>::quiet_NaN();
  }
  announce_gradients(optimizer);
}

Status train_rank(
    const GroupOptions& group, comm::Communicator& world, int rank, RankResult& result) {
  const auto deadline = Deadline::after(std::chrono::seconds{20});
  optimizer::OptimizerOptions tuned = optimizer_options();
  if (group.tune) {
    group.tune(tuned);
  }
  MUSTER_ASSIGN_OR_RETURN(
      const auto optimizer,
      optimizer::Optimizer::create(
          group.specs.empty() ? specs() : group.specs, tuned, world, nullptr, deadline));
  AgentOptions options;
  options.identity = {"unit", Generation{1}, Rank{rank}, "incarnation-" + std::to_string(rank)};
  options.world_size = group.ranks;
  options.total_steps = group.total_steps;
  options.collective_timeout = std::chrono::seconds{20};
  if (group.adjust) {
    group.adjust(options);
  }
  MUSTER_ASSIGN_OR_RETURN(
      const auto agent, Agent::join(options, world, *optimizer, group.model.value_or(model())));
  TrainerState trainer;
  result.trainer_tensor.assign(5, 0.0F);
  trainer.tensors = {{"bias_state", result.trainer_tensor}};
  trainer.values["cursor"] = "0";
  trainer.on_verdict = [&result](const Verdict& verdict, const ReducedLanes& lanes) {
    result.trainer_tensor[3] += static_cast<float>(lanes.expert_counts[0][2] + verdict.loss);
  };
  MUSTER_RETURN_IF_ERROR(agent->restore(trainer));
  result.first_step = agent->step();
  while (result.ending == Ending::kContinue) {
    StepContext context{*agent, *optimizer, rank, agent->step()};
    result.loss_scales.push_back(agent->loss_scale());
    run_step(group, *agent, *optimizer, context);
    trainer.values["cursor"] = std::to_string(std::stoll(trainer.values["cursor"]) + 1);
    result.trainer_tensor[2] += 0.25F;
    MUSTER_ASSIGN_OR_RETURN(
        Verdict verdict, agent->end_step(context.loss_sum, context.tokens, trainer));
    result.ending = verdict.ending;
    if (group.after_step) {
      group.after_step(rank, verdict);
    }
    result.verdicts.push_back(std::move(verdict));
  }
  for (const optimizer::Parameter& parameter : optimizer->parameters()) {
    const std::vector<float> values = values_of(parameter);
    result.parameters.insert(result.parameters.end(), values.begin(), values.end());
  }
  result.applied_steps = optimizer->applied_steps();
  result.cursor = trainer.values["cursor"];
  return agent->finish();
}

}  // namespace

std::vector<float> values_of(const optimizer::Parameter& parameter) {
  std::vector<float> values{parameter.value.begin(), parameter.value.end()};
  if (!parameter.value16.empty()) {
    values.resize(parameter.value16.size());
    kernels::widen(parameter.spec.dtype, parameter.value16, values);
  }
  return values;
}

std::vector<RankResult> train(const GroupOptions& options) {
  const auto group = comm::make_local_group(options.ranks);
  std::vector<RankResult> results(group.size());
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < group.size(); ++rank) {
    threads.emplace_back([&, rank] {
      results[rank].status =
          train_rank(options, *group[rank], static_cast<int>(rank), results[rank]);
      if (!results[rank].status.ok()) {
        group[rank]->abort(results[rank].status.message());
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return results;
}

}  // namespace muster::agent
