// SPDX-License-Identifier: Apache-2.0
#include <muster/common/address.h>
#include <muster/common/text.h>

#include <optional>

namespace muster {

namespace {

std::optional<HostPort> split(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) {
    return std::nullopt;
  }
  std::string_view host = text.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) {
    host = host.substr(1, host.size() - 2);
  }
  const auto port = parse<std::uint16_t>(text.substr(colon + 1));
  if (host.empty() || host.find_first_of("[]") != std::string_view::npos || !port) {
    return std::nullopt;
  }
  return HostPort{std::string{host}, *port};
}

Status malformed(std::string_view text, int port_min) {
  return invalid_argument(
      "address must be HOST:PORT with a port between ",
      port_min,
      " and 65535, for example 127.0.0.1:29600, got '",
      text,
      "'");
}

}  // namespace

Expected<HostPort> parse_peer_address(std::string_view text) {
  std::optional<HostPort> address = split(text);
  if (!address || address->port == 0) {
    return malformed(text, 1);
  }
  return *std::move(address);
}

Expected<HostPort> parse_listen_address(std::string_view text) {
  std::optional<HostPort> address = split(text);
  if (!address) {
    return malformed(text, 0);
  }
  if (address->host == "localhost") {
    address->host = "127.0.0.1";
  }
  return *std::move(address);
}

std::string to_string(const HostPort& address) {
  const bool is_v6 = address.host.find(':') != std::string::npos;
  return is_v6 ? concat('[', address.host, "]:", address.port)
               : concat(address.host, ':', address.port);
}

}  // namespace muster
