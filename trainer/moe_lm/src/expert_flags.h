// The flags of ExpertOptions.
#pragma once

#include "trainer/moe_lm/src/expert_options.h"

namespace CLI {
class App;
}

namespace muster::moe_lm {

// A value that does not parse ends CLI11's parse() with the flag and what it may be.
void add_expert_flags(CLI::App& app, ExpertOptions& options);

}  // namespace muster::moe_lm
