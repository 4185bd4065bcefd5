// SPDX-License-Identifier: Apache-2.0
// UTF-8 for Protobuf string fields, which refuse anything else.
#pragma once

#include <string>
#include <string_view>

namespace muster::wire {

[[nodiscard]] bool is_utf8(std::string_view text);

// The text with every byte that is not part of well-formed UTF-8 replaced by '?'. Reasons may hold
// bytes of file names or third-party errors; one such byte must not make a message unsendable.
[[nodiscard]] std::string to_utf8(std::string_view text);

}  // namespace muster::wire
