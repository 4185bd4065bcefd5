// SPDX-License-Identifier: Apache-2.0
// Phase one of the commit protocol: one rank writes its files into the unfinished folder.
#pragma once

#include "checkpoint/src/disk.h"
#include "checkpoint/src/snapshot.h"

#include <atomic>
#include <filesystem>
#include <string>

namespace muster::checkpoint {

// Identifies one save of one rank.
struct SaveId {
  std::filesystem::path run_folder;
  Identity identity;
  int world_size{1};
  StepIndex step;
  std::int64_t sequence{0};

  [[nodiscard]] std::filesystem::path unfinished_folder() const;
  [[nodiscard]] std::filesystem::path committed_folder() const;
};

// Hashes the snapshot, then writes and fsyncs both files and the folder. kAborted when `cancelled`
// becomes true meanwhile. On any error the rank's files are removed again.
[[nodiscard]] Status prepare_rank(
    Disk& disk, const SaveId& id, const Snapshot& snapshot, const std::atomic<bool>& cancelled);

// Removes this rank's files, and the folder when they were the last in it.
[[nodiscard]] Status remove_rank(Disk& disk, const SaveId& id);

}  // namespace muster::checkpoint
