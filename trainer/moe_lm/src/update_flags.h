// The flags of UpdateOptions.
#pragma once

#include "trainer/moe_lm/src/update_options.h"

namespace CLI {
class App;
}

namespace muster::moe_lm {

// A value that does not parse ends CLI11's parse() with the flag and what it may be.
void add_update_flags(CLI::App& app, UpdateOptions& options);

}  // namespace muster::moe_lm
