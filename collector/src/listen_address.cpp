// SPDX-License-Identifier: Apache-2.0
#include "collector/src/listen_address.h"

#include <charconv>
#include <system_error>

namespace muster::collector {

Expected<ListenAddress> parse_listen_address(const std::string& text) {
  Status malformed = invalid_argument(
      "'" + text + "' is no address to listen on; write HOST:PORT, as 127.0.0.1:29600");
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) {
    return malformed;
  }
  ListenAddress address;
  address.host = text.substr(0, colon);
  if (address.host.size() > 2 && address.host.front() == '[' && address.host.back() == ']') {
    address.host = address.host.substr(1, address.host.size() - 2);
  }
  if (address.host == "localhost") {
    address.host = "127.0.0.1";
  }
  const char* begin = text.data() + colon + 1;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(begin, end, address.port);
  if (begin == end || stop != end || error != std::errc{}) {
    return malformed;
  }
  return address;
}

}  // namespace muster::collector
