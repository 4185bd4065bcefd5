// SPDX-License-Identifier: Apache-2.0
// Rules for deleting checkpoints and leftovers from a run's folder.
#pragma once

#include "checkpoint/src/disk.h"

#include <muster/common/ids.h>

#include <filesystem>
#include <string>

namespace muster::checkpoint {

// Deletes committed checkpoints beyond the newest `keep_last` intact ones. Pinned ones are kept and
// do not count; damaged ones neither count nor go (they are evidence). Before anything is deleted
// the newest is verified in full, so the last good one always stays. Deleting = renaming to
// .trash-<name>, then removing, so that a crash leaves no half checkpoint.
[[nodiscard]] Status apply_retention(
    Disk& disk, const std::filesystem::path& root, const std::string& run_id, int keep_last);

// Removes unfinished folders of generations older than `current`, and trash left by a crash.
[[nodiscard]] Status collect_garbage(
    Disk& disk, const std::filesystem::path& run_folder, Generation current);

}  // namespace muster::checkpoint
