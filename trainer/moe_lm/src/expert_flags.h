// SPDX-License-Identifier: Apache-2.0
// Command-line flags of ExpertOptions.
#pragma once

#include "trainer/moe_lm/src/expert_options.h"

namespace CLI {
class App;
}

namespace muster::moe_lm {

// If a value does not parse, CLI11's parse() throws with the flag and its valid values.
void add_expert_flags(CLI::App& app, ExpertOptions& options);

}  // namespace muster::moe_lm
