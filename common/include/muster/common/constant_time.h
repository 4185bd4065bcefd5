// SPDX-License-Identifier: Apache-2.0
// Comparison of secrets.
#pragma once

#include <string_view>

namespace muster {

// Compares a received text with a secret. The time depends on the size of `given` only, so that a
// sender cannot find the secret byte by byte.
[[nodiscard]] bool equal_in_constant_time(std::string_view given, std::string_view secret);

}  // namespace muster
