// SPDX-License-Identifier: Apache-2.0
// Parses argv into TrainOptions.
#pragma once

#include "trainer/moe_lm/src/options.h"

#include <optional>

namespace muster::moe_lm {

// Returns options, or the exit code (0 after --help) once the reason is printed.
struct CommandLine {
  TrainOptions options;
  std::optional<int> exit_code;
};

[[nodiscard]] CommandLine parse_command_line(int argc, const char* const* argv);

}  // namespace muster::moe_lm
