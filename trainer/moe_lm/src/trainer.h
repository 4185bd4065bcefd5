// SPDX-License-Identifier: Apache-2.0
// One rank's training run, from initial weights or a checkpoint to its end.
#pragma once

#include "trainer/moe_lm/src/evaluation.h"
#include "trainer/moe_lm/src/options.h"

#include <muster/agent/agent.h>
#include <muster/comm/communicator.h>

#include <functional>
#include <iosfwd>
#include <memory>
#include <string>
#include <vector>

namespace muster::moe_lm {

struct TrainSetup {
  TrainOptions options;                          // validated
  agent::AgentOptions agent;                     // interval, steps and tau are taken from `options`
  const std::string* text{nullptr};              // longer than a sequence; not read for needles
  std::ostream* out{nullptr};                    // rank 0's progress lines
  std::function<void(agent::Agent&)> on_joined;  // before the first step; may be empty
};

struct TrainResult {
  agent::Ending ending{agent::Ending::kContinue};
  std::int64_t first_step{0};  // step at which this process started or resumed
  std::vector<double> losses;  // nats per byte of every step of this process
  std::vector<bool> skipped;
  std::vector<Evaluation> evaluations;  // of options.eval_every
};

// Runs training one step at a time. Not thread-safe; `world` and the setup's text must outlive it.
class TrainingLoop {
 public:
  // Collective, like step() and finish(). Errors: a peer is lost, the generation is fenced, or the
  // set-up is refused.
  [[nodiscard]] static Expected<std::unique_ptr<TrainingLoop>> start(
      comm::Communicator& world, TrainSetup setup);

  TrainingLoop() = default;
  TrainingLoop(const TrainingLoop&) = delete;
  TrainingLoop& operator=(const TrainingLoop&) = delete;
  TrainingLoop(TrainingLoop&&) = delete;
  TrainingLoop& operator=(TrainingLoop&&) = delete;
  virtual ~TrainingLoop() = default;

  [[nodiscard]] virtual Expected<agent::Verdict> step() = 0;
  // True after a step whose verdict ended the run.
  [[nodiscard]] virtual Expected<TrainResult> finish() = 0;
  [[nodiscard]] virtual agent::Agent& agent() = 0;
  // True if no step is left: the run ended, or it resumed from its last checkpoint.
  [[nodiscard]] virtual bool done() const = 0;
};

// Calls step() until the run is done, then finish().
[[nodiscard]] Expected<TrainResult> run_to_end(TrainingLoop& loop);

// start and run_to_end.
[[nodiscard]] Expected<TrainResult> train(comm::Communicator& world, TrainSetup setup);

}  // namespace muster::moe_lm
