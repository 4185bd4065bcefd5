// SPDX-License-Identifier: Apache-2.0
// Acceptance of the demo and its summary table. Pure functions of the facts.
#pragma once

#include "cli/demo/options.h"

#include <string>
#include <vector>

namespace muster::demo {

// One sentence per broken promise; empty if the demo succeeded.
[[nodiscard]] std::vector<std::string> broken_promises(
    const DemoOptions& options, const DemoFacts& facts);

// The table printed at the end.
[[nodiscard]] std::string summary_table(const DemoOptions& options, const DemoFacts& facts);

}  // namespace muster::demo
