// SPDX-License-Identifier: Apache-2.0
// One rank of the demo's training job. `muster run --nproc-per-node 4 -- moe_lm --data FILE` starts
// several; a single process is a world of one.
#include "trainer/moe_lm/src/command_line.h"
#include "trainer/moe_lm/src/options.h"
#include "trainer/moe_lm/src/text.h"
#include "trainer/moe_lm/src/trainer.h"

#include <muster/agent/agent.h>
#include <muster/comm/backends.h>

#include <iostream>
#include <string>

namespace muster::moe_lm {
namespace {

// One write, because the lines of several ranks share a terminal.
int fail(int rank, const Status& status) {
  std::cerr << "moe_lm: rank " + std::to_string(rank) + ": " + status.message() + "\n"
            << std::flush;
  return 1;
}

// A wrong set-up fails again after every restart; a lost peer, a disk or a damaged checkpoint may
// not.
int fail_start(int rank, const Status& status) {
  fail(rank, status);
  switch (status.code()) {
    case StatusCode::kInvalidArgument:
    case StatusCode::kFailedPrecondition:
    case StatusCode::kVersionMismatch:
    case StatusCode::kUnimplemented:
      return agent::kExitNeverRestart;
    default:
      return 1;
  }
}

int run(TrainOptions options) {
  auto agent_options = agent::AgentOptions::from_environment();
  if (!agent_options) {
    return fail_start(0, agent_options.status());
  }
  const int rank = agent_options->identity.rank.value();
  choose_ep_size(options, agent_options->world_size);
  if (const Status fits = validate(options, agent_options->world_size); !fits.ok()) {
    fail(rank, fits);
    return agent::kExitNeverRestart;
  }
  const auto text =
      options.needle_pairs > 0 ? Expected<std::string>{std::string{}} : load_text(options.data);
  if (!text) {
    fail(rank, text.status());
    return agent::kExitNeverRestart;
  }
  auto world = comm::connect_from_environment(Deadline::after(agent_options->collective_timeout));
  if (!world) {
    return fail_start(rank, world.status());
  }
  TrainSetup setup{
      std::move(options), std::move(*agent_options), &*text, &std::cout, [](agent::Agent& agent) {
        agent::install_preemption_handlers(agent);
      }};
  const auto loop = TrainingLoop::start(**world, std::move(setup));
  if (!loop) {
    return fail_start(rank, loop.status());
  }
  const auto result = run_to_end(**loop);
  return result ? agent::exit_code(result->ending) : fail(rank, result.status());
}

}  // namespace
}  // namespace muster::moe_lm

int main(int argc, char** argv) {
  muster::agent::hold_preemption_signals();
  auto line = muster::moe_lm::parse_command_line(argc, argv);
  return line.exit_code ? *line.exit_code : muster::moe_lm::run(std::move(line.options));
}
