// SPDX-License-Identifier: Apache-2.0
#include "optimizer/src/storage/expert_position.h"

#include <algorithm>
#include <string>
#include <vector>

namespace muster::optimizer {

Expected<ExpertPosition> find_expert_position(
    comm::Communicator& world, comm::Communicator& peers, Deadline deadline) {
  std::vector<std::int64_t> lowest(1, -world.rank());
  MUSTER_RETURN_IF_ERROR(peers.all_reduce(std::span{lowest}, comm::ReduceOp::kMax, deadline));
  const auto ranks = static_cast<std::size_t>(world.size());
  std::vector<std::int64_t> leader(ranks, 0);
  const std::int64_t mine = -lowest.front();
  leader[static_cast<std::size_t>(world.rank())] = mine;
  const std::vector<std::size_t> counts(ranks, 1);
  MUSTER_RETURN_IF_ERROR(world.all_gather(std::span{leader}, counts, deadline));
  for (const std::int64_t candidate : leader) {
    const auto size = std::count(leader.begin(), leader.end(), candidate);
    if (size != peers.size()) {
      return failed_precondition(
          "the expert peers of rank ",
          candidate,
          " are ",
          size,
          " ranks, those of rank ",
          mine,
          " are ",
          peers.size(),
          "; split the world into groups of equal size");
    }
  }
  std::sort(leader.begin(), leader.end());
  leader.erase(std::unique(leader.begin(), leader.end()), leader.end());
  ExpertPosition position;
  position.groups = static_cast<int>(leader.size());
  position.index =
      static_cast<int>(std::lower_bound(leader.begin(), leader.end(), mine) - leader.begin());
  return position;
}

}  // namespace muster::optimizer
