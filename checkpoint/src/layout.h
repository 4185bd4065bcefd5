// SPDX-License-Identifier: Apache-2.0
// Names of files and folders of a run; docs/concepts/checkpoints.md shows the tree.
#pragma once

#include <muster/common/ids.h>
#include <muster/common/status.h>

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace muster::checkpoint {

inline constexpr std::string_view kManifestName = "MANIFEST.json";
inline constexpr std::string_view kLatestName = "LATEST";
inline constexpr std::string_view kGenerationName = "GENERATION";
inline constexpr std::string_view kRunUidName = "RUN_UID";
inline constexpr std::string_view kGenerationLockName = "GENERATION.lock";
inline constexpr std::string_view kTrashPrefix = ".trash-";

// step-<S>.gen-<G>, with ".tmp" behind it until it is committed.
struct StepFolder {
  StepIndex step;
  Generation generation;
  bool unfinished{false};

  friend bool operator==(const StepFolder&, const StepFolder&) = default;
};

[[nodiscard]] std::string to_name(const StepFolder& folder);
// nullopt for any other name, leading zeros and signs included.
[[nodiscard]] std::optional<StepFolder> parse_step_folder(std::string_view name);

[[nodiscard]] std::string data_name(int rank);    // rank-<r>.safetensors
[[nodiscard]] std::string record_name(int rank);  // rank-<r>.json

// A run id becomes a folder name: letters, digits, '.', '_', '-', not starting with '.'.
[[nodiscard]] Status check_run_id(std::string_view run_id);

}  // namespace muster::checkpoint
