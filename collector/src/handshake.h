// SPDX-License-Identifier: Apache-2.0
// Admission of peers. Pure: takes a Hello, returns the version to use or the Goodbye.
#pragma once

#include <muster/wire/messages.h>

#include <cstdint>
#include <string_view>
#include <variant>

namespace muster::collector {

// The agreed version, or the farewell. `token` empty: none is asked for.
[[nodiscard]] std::variant<std::uint32_t, wire::Goodbye> admit(
    const wire::Hello& hello, std::string_view token);

}  // namespace muster::collector
