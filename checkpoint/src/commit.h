// SPDX-License-Identifier: Apache-2.0
// Phase two of the commit protocol, run by the lowest rank once every rank has prepared.
#pragma once

#include "checkpoint/src/prepare.h"

#include <muster/common/clock.h>

namespace muster::checkpoint {

// Checks the records of all ranks, writes the manifest, passes the generation fence, renames the
// folder and makes the rename durable. On an error before the rename the unfinished folder is
// removed; an error after it (the parent's fsync) leaves a complete checkpoint whose durability is
// unknown and is returned all the same.
[[nodiscard]] Status commit_checkpoint(
    Disk& disk, const SaveId& id, bool pinned, const Clock& clock);

}  // namespace muster::checkpoint
