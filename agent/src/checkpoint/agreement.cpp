// SPDX-License-Identifier: Apache-2.0
#include "agent/src/checkpoint/agreement.h"

#include <array>
#include <span>

namespace muster::agent {

Status agree_on_success(
    comm::Communicator& world, const Status& mine, const std::string& what, Deadline deadline) {
  std::array<double, 1> failed{mine.ok() ? 0.0 : 1.0};
  const Status reduced =
      world.all_reduce(std::span<double>{failed}, comm::ReduceOp::kMax, deadline);
  if (!mine.ok()) {
    return mine.context(what);
  }
  MUSTER_RETURN_IF_ERROR(reduced.context(what));
  return failed[0] > 0.0 ? aborted(what, " failed on another rank, which reports the cause")
                         : Status{};
}

}  // namespace muster::agent
