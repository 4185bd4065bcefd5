// What one rank saves and how it takes it back: the optimizer's shard, the trainer's tensors and
// values, and the agent's own history.
#pragma once

#include "src/shared_state_text.h"

#include <muster/agent/agent.h>

namespace muster::agent {

// Borrows the tensors: they must not change until the writer has copied them.
[[nodiscard]] checkpoint::RankState collect_state(
    optimizer::Optimizer& optimizer,
    const SharedState& state,
    const TrainerState& trainer,
    std::int64_t known_epoch);

struct RestoredState {
  SharedState shared;
  std::int64_t known_epoch{0};
};

// Writes every tensor and value back where it came from. kFailedPrecondition names a tensor whose
// size differs, that the checkpoint lacks, or that this model has no place for; nothing is written
// before all of them fit.
[[nodiscard]] Expected<RestoredState> distribute_state(
    const checkpoint::LoadedState& loaded, optimizer::Optimizer& optimizer, TrainerState& trainer);

}  // namespace muster::agent
