// SPDX-License-Identifier: Apache-2.0
// muster plan ep, a subcommand of a subcommand.
#pragma once

#include "cli/commands/subcommands.h"

namespace muster::cli {

// Adds `ep` to `plan`. The action is to be run only when `ep` was parsed.
Action declare_plan_ep(CLI::App& plan);

}  // namespace muster::cli
