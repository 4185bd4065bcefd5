// SPDX-License-Identifier: Apache-2.0
// Sizes, ages and numbers as people read them.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>

namespace muster::cli {

[[nodiscard]] std::string format_bytes(std::int64_t bytes);          // "1.5 MiB", "12 B"
[[nodiscard]] std::string format_age(std::chrono::nanoseconds age);  // "3 min", "in the future"
[[nodiscard]] std::string format_shape(std::span<const std::int64_t> shape);  // "[4, 8]"

// "12 s ago"-like age of a Unix time against `now_unix_ns`; "-" for 0.
[[nodiscard]] std::string format_age_of(std::int64_t unix_ns, std::int64_t now_unix_ns);

}  // namespace muster::cli
