// SPDX-License-Identifier: Apache-2.0
// State of one rank in a checkpoint: the optimizer's shard, the trainer's tensors and values, and
// the agent's history.
#pragma once

#include "agent/src/attention/state.h"
#include "agent/src/checkpoint/shared_state_text.h"

#include <muster/agent/agent.h>
#include <muster/checkpoint/pieces.h>

namespace muster::agent {

// Refers to the tensors, which must not change until the writer has copied them.
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

// Restores rank `rank` of `world_size` from a checkpoint of any number of ranks in any layout. The
// optimizer reads the elements it owns now. Trainer tensors, which every rank saved in full, come
// from the old rank `rank` modulo the old world size; trainer values come from the same rank if the
// world size is unchanged, else from rank 0, so that all ranks have the same.
// kFailedPrecondition names a tensor whose size differs, that the checkpoint lacks, or that does
// not exist in this model; the optimizer's errors are those of load_state. Writes nothing before
// all checks have passed and every byte of the trainer's tensors has matched its hash.
[[nodiscard]] Expected<RestoredState> distribute_state(
    checkpoint::Pieces& pieces,
    int rank,
    int world_size,
    optimizer::Optimizer& optimizer,
    TrainerState& trainer);

}  // namespace muster::agent
