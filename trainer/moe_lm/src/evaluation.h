// SPDX-License-Identifier: Apache-2.0
// Loss and accuracy of the model on held-out sequences, and the reach of a step's gradients.
#pragma once

#include "trainer/moe_lm/src/model.h"
#include "trainer/moe_lm/src/text.h"

#include <muster/agent/agent.h>
#include <muster/comm/communicator.h>

#include <cstdint>
#include <string>
#include <vector>

namespace muster::moe_lm {

struct Evaluation {
  std::int64_t step{0};
  double loss{0};      // nats per target
  double accuracy{0};  // share of targets that are the most likely byte
  // [layers] for batches with origins: share of targets for which some head attends to the block
  // with the answer; 1 under full attention. Empty without origins.
  std::vector<double> answer_attended;
};

// Evaluates this rank's part of the sequences and returns the result over all parts. Collective
// over `world`. Leaves the agent's records, gradients and expert biases unchanged.
[[nodiscard]] Expected<Evaluation> evaluate(
    Model& model,
    agent::Agent& agent,
    comm::Communicator& world,
    const Batch& part,
    Deadline deadline);

// "loss 0.0123 accuracy 0.9950 answer attended 1.000 0.997"
[[nodiscard]] std::string to_string(const Evaluation& evaluation);

// " reach 0.2500/0.0100 1.0000/1.0000 full": by layer, the share of key blocks and of tokens
// that the job's gradients of the step reached. Empty if no layer has block attention.
[[nodiscard]] std::string reach_text(const agent::ReducedLanes& lanes);

}  // namespace muster::moe_lm
