// SPDX-License-Identifier: Apache-2.0
// "HOST:PORT" of a listener, checked before anything is opened.
#pragma once

#include <muster/common/expected.h>

#include <cstdint>
#include <string>

namespace muster::collector {

struct ListenAddress {
  std::string host;  // A numeric address.
  std::uint16_t port{0};
};

// Accepts "127.0.0.1:29600", "localhost:0", "[::1]:29600". kInvalidArgument names what is wrong.
[[nodiscard]] Expected<ListenAddress> parse_listen_address(const std::string& text);

}  // namespace muster::collector
