// SPDX-License-Identifier: Apache-2.0
// Runs that share a name: `exp`, and `exp#2` for a run of another identity that came under it.
// A name means its newest run; `exp#1` is the first one.
#pragma once

#include "collector/store/src/connection.h"

#include <muster/common/expected.h>
#include <muster/store/store.h>

#include <string>
#include <vector>

namespace muster::store {

// SQL for the name a reader sees in place of runs.name of row `r`.
inline constexpr const char* kShownName =
    "CASE WHEN EXISTS (SELECT 1 FROM run_lines l WHERE l.base = r.name) "
    "THEN r.name || '#1' ELSE r.name END";

// The name under which a run is stored. kNotFound when there is none.
[[nodiscard]] Expected<std::string> resolve_run(Connection& connection, const std::string& name);

[[nodiscard]] Expected<std::vector<RunLine>> read_run_lines(Connection& connection);

// Idempotent. True if the line is new.
[[nodiscard]] Expected<bool> write_run_line(
    Connection& connection, std::int64_t run_id, const RunLine& line);

}  // namespace muster::store
