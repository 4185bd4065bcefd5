// SPDX-License-Identifier: Apache-2.0
// The variables a rank finds in its environment: torchrun's, and muster's own.
#pragma once

#include <muster/common/ids.h>
#include <muster/launcher/options.h>

#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace muster::launcher {

// Settings of one generation, equal for all its ranks.
struct GenerationSetup {
  Generation generation;
  std::filesystem::path resume_from;  // empty: a fresh start
  int master_port{0};
  std::string run_uid{};
};

// `inherited` ("NAME=value") with the launcher's variables put over it. docs/operate/launcher.md
// lists them.
[[nodiscard]] std::vector<std::string> rank_environment(
    const LauncherOptions& options,
    const GenerationSetup& setup,
    int rank,
    const std::string& incarnation,
    std::span<const std::string> inherited);

// The environment of this process.
[[nodiscard]] std::vector<std::string> inherited_environment();

}  // namespace muster::launcher
