// SPDX-License-Identifier: Apache-2.0
// `muster demo`: trains, breaks the job on purpose, and checks that it recovers.
#pragma once

#include "cli/demo/options.h"

namespace muster::demo {

// Blocks for the demo's length (about two minutes on two cores; longer with `keep`). The exit code:
// 0 only when no promise was broken; 1 with the broken promises printed; 130 after Ctrl-C.
[[nodiscard]] int run_demo(DemoOptions options);

}  // namespace muster::demo
