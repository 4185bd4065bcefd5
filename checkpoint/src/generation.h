// SPDX-License-Identifier: Apache-2.0
// The generation fence: <run>/GENERATION holds the generation in force, GENERATION.lock guards it.
//
// Allocating a generation and committing a checkpoint both hold the lock, so a writer of an older
// generation either commits before the new one exists or not at all.
#pragma once

#include <muster/common/expected.h>
#include <muster/common/file.h>
#include <muster/common/ids.h>

#include <filesystem>
#include <string_view>

namespace muster::checkpoint {

// Waits for other holders for a bounded time; then kAlreadyExists with the holder's note.
[[nodiscard]] Expected<FileLock> lock_generation(
    const std::filesystem::path& run_folder, std::string_view owner_note);

// 0 when there is no GENERATION file; kDataLoss when it is not a number.
[[nodiscard]] Expected<Generation> read_generation(const std::filesystem::path& run_folder);

// kFailedPrecondition unless `mine` is in force. A run without GENERATION file has no fence.
[[nodiscard]] Status check_fence(const std::filesystem::path& run_folder, Generation mine);

}  // namespace muster::checkpoint
