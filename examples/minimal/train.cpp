// A complete training loop under muster; start it with: muster run --nproc-per-node 4 -- ./train
#include <muster/agent/agent.h>
#include <muster/comm/backends.h>
#include <cstdio>
using namespace muster;
static Expected<agent::Ending> train() {
  const auto deadline = Deadline::after(std::chrono::seconds{60});
  MUSTER_ASSIGN_OR_RETURN(const auto world, comm::connect_from_environment(deadline));
  optimizer::OptimizerOptions options;  // the first matching route wins; no route is an error
  options.routes = {{"*.weight", optimizer::Rule::kMuon, "hidden"}, {"*", optimizer::Rule::kAdamW, "rest"}};
  options.schedule = {.learning_rate = 0.02, .warmup_steps = 10, .total_steps = 300};
  MUSTER_ASSIGN_OR_RETURN(const auto optimizer, optimizer::Optimizer::create(
      {{"layer.weight", {64, 32}}, {"layer.bias", {64}}}, options, *world, nullptr, deadline));
  MUSTER_ASSIGN_OR_RETURN(auto settings, agent::AgentOptions::from_environment());
  settings.total_steps = 300;
  settings.checkpoint_interval = 50;
  MUSTER_ASSIGN_OR_RETURN(const auto agent, agent::Agent::join(settings, *world, *optimizer, {}));
  agent::install_preemption_handlers(*agent);
  agent::TrainerState state;  // data cursors and RNG counters: they come back after a restart
  MUSTER_RETURN_IF_ERROR(agent->restore(state));
  auto ending = agent::Ending::kContinue;
  while (ending == agent::Ending::kContinue && agent->step() < settings.total_steps) {
    agent->begin_step();
    double loss = 0;  // forward and backward: every element wants to be 1
    for (auto& parameter : optimizer->parameters())
      for (std::size_t i = 0; i < parameter.value.size(); ++i) {
        parameter.gradient[i] += parameter.value[i] - 1.0F;
        loss += 0.5 * (parameter.value[i] - 1.0F) * (parameter.value[i] - 1.0F);
      }
    MUSTER_ASSIGN_OR_RETURN(const auto verdict, agent->end_step(loss, 1, state));
    if (agent->step() % 50 == 0) std::printf("step %ld: loss %.4f\n", static_cast<long>(agent->step()), verdict.loss);
    ending = verdict.ending;
  }
  return agent->finish().ok() ? Expected{ending} : aborted("the last checkpoint was lost");
}
int main() {
  const auto ending = train();
  if (!ending) std::fprintf(stderr, "%s\n", ending.status().to_string().c_str());
  return !ending ? 1 : *ending == agent::Ending::kPreempted ? agent::kExitPreempted : agent::kExitDone;
}
