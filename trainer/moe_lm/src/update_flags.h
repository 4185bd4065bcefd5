// SPDX-License-Identifier: Apache-2.0
// Command-line flags of UpdateOptions.
#pragma once

#include "trainer/moe_lm/src/update_options.h"

namespace CLI {
class App;
}

namespace muster::moe_lm {

// If a value does not parse, CLI11's parse() throws with the flag and its valid values.
void add_update_flags(CLI::App& app, UpdateOptions& options);

}  // namespace muster::moe_lm
