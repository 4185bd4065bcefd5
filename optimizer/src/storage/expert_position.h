// SPDX-License-Identifier: Apache-2.0
// Position of this rank's experts among all experts of the job.
#pragma once

#include <muster/comm/communicator.h>

namespace muster::optimizer {

// Expert-parallel layout as the optimizer needs it for global shapes: the groups of expert peers,
// numbered by their lowest world rank, hold consecutive slices along dimension 0.
struct ExpertPosition {
  int groups{1};
  int index{0};
};

// Collective over `world` and `peers`. kFailedPrecondition when the groups of peers differ in size.
[[nodiscard]] Expected<ExpertPosition> find_expert_position(
    comm::Communicator& world, comm::Communicator& peers, Deadline deadline);

}  // namespace muster::optimizer
