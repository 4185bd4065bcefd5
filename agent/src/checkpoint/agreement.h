// SPDX-License-Identifier: Apache-2.0
// Agreement of all ranks on whether an operation succeeded everywhere.
#pragma once

#include <muster/comm/communicator.h>
#include <muster/common/clock.h>
#include <muster/common/status.h>

#include <string>

namespace muster::agent {

// Collective: this rank's error, or kAborted if only other ranks failed, so that no rank waits for
// one that gave up. `what` becomes the context of the error.
[[nodiscard]] Status agree_on_success(
    comm::Communicator& world, const Status& mine, const std::string& what, Deadline deadline);

}  // namespace muster::agent
