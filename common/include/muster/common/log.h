// SPDX-License-Identifier: Apache-2.0
// The only way to log. Fields, not prose: log_info("event=restart generation=3 reason=\"...\"").
//
// Thread-safe. Never called on a training step's hot path: hot paths count.
#pragma once

#include <string>
#include <string_view>

namespace muster {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };

// Once, early in main. `program` prefixes each line ("collector", "rank 3"). Lines go to stderr.
void init_logging(std::string_view program, LogLevel level);

// "debug", "info", "warning", "error", "off"; anything else gives kInfo.
[[nodiscard]] LogLevel parse_log_level(std::string_view name);

void log_debug(std::string_view line);
void log_info(std::string_view line);
void log_warning(std::string_view line);
void log_error(std::string_view line);

}  // namespace muster
