// SPDX-License-Identifier: Apache-2.0
// The two parts of a request target, decoded. Pure functions.
#pragma once

#include <muster/common/expected.h>

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace muster::dashboard {

struct Url {
  std::vector<std::string> segments;         // decoded, without empty ones
  std::map<std::string, std::string> query;  // decoded; the last of equal names wins
};

// kInvalidArgument for a malformed percent escape, a NUL, or a segment "." or "..": nothing that a
// file system could read as another folder gets past here.
[[nodiscard]] Expected<Url> parse_target(std::string_view target);

}  // namespace muster::dashboard
