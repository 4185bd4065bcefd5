// What the model makes of sequences that it does not train on, and how much a step's gradients
// reach.
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
  // [layers] of a batch with origins: share of targets of which some head attends to the block with
  // the answer; 1 under full attention. Empty without origins.
  std::vector<double> answer_attended;
};

// Collective over `world`, on this rank's part of the sequences; the result is of all parts. The
// agent records nothing of it, no gradient and no expert bias changes.
[[nodiscard]] Expected<Evaluation> evaluate(
    Model& model,
    agent::Agent& agent,
    comm::Communicator& world,
    const Batch& part,
    Deadline deadline);

// "loss 0.0123 accuracy 0.9950 answer attended 1.000 0.997"
[[nodiscard]] std::string to_string(const Evaluation& evaluation);

// " reach 0.2500/0.0100 1.0000/1.0000 full": by layer, which share of key blocks, and of tokens,
// the job's gradients of the step reached. Nothing where no layer has block attention.
[[nodiscard]] std::string reach_text(const agent::ReducedLanes& lanes);

}  // namespace muster::moe_lm
