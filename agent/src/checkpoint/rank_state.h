// What one rank saves and how it takes it back: the optimizer's shard, the trainer's tensors and
// values, and the agent's own history.
#pragma once

#include "agent/src/attention/state.h"
#include "agent/src/checkpoint/shared_state_text.h"

#include <muster/agent/agent.h>
#include <muster/checkpoint/pieces.h>

namespace muster::agent {

// Borrows the tensors: they must not change until the writer has copied them.
[[nodiscard]] checkpoint::RankState collect_state(
    optimizer::Optimizer& optimizer,
    const SharedState& state,
    const AttentionState& attention,
    const TrainerState& trainer,
    std::int64_t known_epoch);

struct RestoredState {
  SharedState shared;
  std::int64_t known_epoch{0};
};

// Takes back, as rank `rank` of `world_size`, what any number of ranks saved in any layout. The
// optimizer reads the elements it owns now. Trainer tensors, which every rank saved in full, come
// from the old rank `rank` modulo the old world size; trainer values from the same rank when the
// world size is the old one, else from rank 0, so that all ranks have the same.
// kFailedPrecondition names a tensor whose size differs, that the checkpoint lacks, or that this
// model has no place for; the optimizer's errors are load_state's. Nothing is written before
// everything fits and every byte of the trainer's has matched its hash.
[[nodiscard]] Expected<RestoredState> distribute_state(
    checkpoint::Pieces& pieces,
    int rank,
    int world_size,
    optimizer::Optimizer& optimizer,
    TrainerState& trainer);

}  // namespace muster::agent
