// SPDX-License-Identifier: Apache-2.0
// Network addresses as text: "127.0.0.1:29600", "collector.example:29600", "[::1]:29600".
#pragma once

#include <muster/common/expected.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace muster {

struct HostPort {
  std::string host;  // A name or a numeric address, without brackets.
  std::uint16_t port{0};

  friend bool operator==(const HostPort&, const HostPort&) = default;
};

// Parses the address of a peer. kInvalidArgument if it is not HOST:PORT with a port from 1 to
// 65535; the host is not resolved. Callers name the option with Status::context.
[[nodiscard]] Expected<HostPort> parse_peer_address(std::string_view text);

// Parses an address to listen on: port 0 asks for a free port, and "localhost" becomes 127.0.0.1.
// kInvalidArgument if it is not HOST:PORT.
[[nodiscard]] Expected<HostPort> parse_listen_address(std::string_view text);

// Returns "host:port", with brackets around an IPv6 host.
[[nodiscard]] std::string to_string(const HostPort& address);

}  // namespace muster
