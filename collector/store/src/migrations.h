// SPDX-License-Identifier: Apache-2.0
// The schema of the database as numbered migrations, never edited once released.
#pragma once

#include "collector/store/src/connection.h"

#include <muster/common/status.h>

#include <cstdint>

namespace muster::store {

// The newest version this build reads and writes (PRAGMA user_version).
[[nodiscard]] std::int64_t schema_version_newest();

// "mstr": identifies a muster database among SQLite files.
inline constexpr std::int64_t kApplicationId = 0x6d737472;

// Ok when the file is empty or a muster database that this build can read. kVersionMismatch for a
// newer one, kInvalidArgument for a database of another program. Changes nothing.
[[nodiscard]] Status check_version(Connection& connection, const std::string& file);

// Lets a reader of an older file see empty tables where the newest version has others. Changes
// nothing in the file.
[[nodiscard]] Status read_as_newest(Connection& connection);

// Runs the missing migrations, each in a separate transaction. Needs the writer's connection.
[[nodiscard]] Status migrate(Connection& connection);

}  // namespace muster::store
