// SPDX-License-Identifier: Apache-2.0
// A complete training loop: every weight learns to be 1. muster run --nproc-per-node 4 -- ./train
#include <muster/agent/agent.h>
#include <muster/comm/backends.h>

#include <cstdio>

using namespace muster;

static Expected<int> train() {
  const auto deadline = Deadline::after(std::chrono::seconds{60});
  MUSTER_ASSIGN_OR_RETURN(const auto world, comm::connect_from_environment(deadline));
  optimizer::OptimizerOptions options;  // The first matching route wins; no route is an error.
  options.routes = {{"weight", optimizer::Rule::kMuon, "hidden"}, {"*", optimizer::Rule::kAdamW}};
  options.schedule = {.learning_rate = 0.4, .warmup_steps = 10, .total_steps = 300};
  MUSTER_ASSIGN_OR_RETURN(
      const auto optimizer,
      optimizer::Optimizer::create(
          {{"weight", {64, 32}}, {"bias", {64}}}, options, *world, nullptr, deadline));
  MUSTER_ASSIGN_OR_RETURN(auto settings, agent::AgentOptions::from_environment());
  settings.total_steps = 300;
  settings.checkpoint_interval = 50;
  MUSTER_ASSIGN_OR_RETURN(const auto agent, agent::Agent::join(settings, *world, *optimizer, {}));
  agent::install_preemption_handlers(*agent);
  agent::TrainerState state;  // Data cursors and RNG counters, restored after a restart.
  MUSTER_RETURN_IF_ERROR(agent->restore(state));
  agent::Verdict verdict;
  while (verdict.ending == agent::Ending::kContinue && agent->step() < settings.total_steps) {
    agent->begin_step();
    double loss = 0;
    for (auto& parameter : optimizer->parameters()) {  // Forward and backward.
      for (std::size_t i = 0; i < parameter.value.size(); ++i) {
        parameter.gradient[i] += parameter.value[i] - 1.0F;
        loss += 0.5 * parameter.gradient[i] * parameter.gradient[i];
      }
    }
    MUSTER_ASSIGN_OR_RETURN(verdict, agent->end_step(loss, 1, state));
    if (agent->step() % 50 == 0) {
      std::printf("step %ld: loss %.4f\n", agent->step(), verdict.loss);
    }
  }
  MUSTER_RETURN_IF_ERROR(agent->finish());
  return agent::exit_code(verdict.ending);
}

int main() {
  const auto code = train();
  if (!code) {
    std::fprintf(stderr, "%s\n", code.status().to_string().c_str());
  }
  return code.value_or(1);
}
