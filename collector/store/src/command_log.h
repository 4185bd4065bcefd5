// SPDX-License-Identifier: Apache-2.0
// Commands, what ranks report of them, and which of them a generation receives.
#pragma once

#include "collector/store/src/connection.h"

#include <muster/common/ids.h>
#include <muster/common/telemetry.h>
#include <muster/store/query.h>

#include <cstdint>
#include <vector>

namespace muster::store {

// Fills in the id.
[[nodiscard]] Status insert_command(
    Connection& connection, std::int64_t run_id, std::int64_t issued_unix_ns, Command& command);

// A rank's report only ever moves its command forward: armed, then one of the final states.
[[nodiscard]] Status insert_command_report(
    Connection& connection,
    std::int64_t run_id,
    const Identity& identity,
    const CommandReport& report);

// Fixes the list of the generation when this is its first call (then `fixed_now` is true): commands
// so far that no earlier generation has finished. Later reports do not change it any more.
[[nodiscard]] Status fix_command_list(
    Connection& connection, std::int64_t run_id, std::int64_t generation, bool& fixed_now);

// The fixed list, and whatever was issued since, with id > `after_id`.
[[nodiscard]] Expected<std::vector<Command>> read_commands_for(
    Connection& connection, std::int64_t run_id, std::int64_t generation, std::uint64_t after_id);

// See Query::commands. Counts and state are those of the newest generation that reported.
[[nodiscard]] Expected<std::vector<CommandStatus>> read_command_statuses(
    Connection& connection, const std::string& run_id);

}  // namespace muster::store
