// SPDX-License-Identifier: Apache-2.0
// Events in the order in which they were stored.
#pragma once

#include "collector/store/src/connection.h"

#include <muster/common/ids.h>
#include <muster/common/telemetry.h>
#include <muster/store/query.h>

#include <cstdint>
#include <vector>

namespace muster::store {

[[nodiscard]] Status insert_event(
    Connection& connection, std::int64_t run_id, const Identity& identity, const Event& event);

// See Query::events.
[[nodiscard]] Expected<std::vector<StoredEvent>> read_events(
    Connection& connection,
    const std::string& run_id,
    std::int64_t after_event_id,
    std::int32_t limit);

}  // namespace muster::store
