// One rank's training run, from initial weights or a checkpoint to its end.
#pragma once

#include "src/options.h"

#include <muster/agent/agent.h>
#include <muster/comm/communicator.h>

#include <functional>
#include <iosfwd>
#include <string>
#include <vector>

namespace muster::moe_lm {

struct TrainSetup {
  TrainOptions options;                          // validated
  agent::AgentOptions agent;                     // interval, steps and tau are taken from `options`
  const std::string* text{nullptr};              // longer than a sequence
  std::ostream* out{nullptr};                    // rank 0's progress lines
  std::function<void(agent::Agent&)> on_joined;  // before the first step; may be empty
};

struct TrainResult {
  agent::Ending ending{agent::Ending::kContinue};
  std::int64_t first_step{0};  // where this process took up the run
  std::vector<double> losses;  // nats per byte of every step of this process
  std::vector<bool> skipped;
};

// Collective. A Status means that a peer is lost, the generation is fenced, or the set-up is
// refused.
[[nodiscard]] Expected<TrainResult> train(comm::Communicator& world, const TrainSetup& setup);

}  // namespace muster::moe_lm
