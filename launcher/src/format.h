// SPDX-License-Identifier: Apache-2.0
// Numbers as people read them.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace muster::launcher {

[[nodiscard]] std::string format_seconds(std::chrono::nanoseconds duration);  // "2.0 s"

}  // namespace muster::launcher
