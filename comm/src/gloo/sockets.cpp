// SPDX-License-Identifier: Apache-2.0
#include "comm/src/gloo/sockets.h"

#include <fcntl.h>
#include <netinet/in.h>

#include <charconv>
#include <cstring>
#include <filesystem>
#include <string>

namespace muster::comm {

namespace {

bool is_same(const sockaddr_storage& a, const sockaddr_storage& b) {
  if (a.ss_family != b.ss_family) {
    return false;
  }
  if (a.ss_family == AF_INET) {
    const auto& x = reinterpret_cast<const sockaddr_in&>(a);
    const auto& y = reinterpret_cast<const sockaddr_in&>(b);
    return x.sin_port == y.sin_port && x.sin_addr.s_addr == y.sin_addr.s_addr;
  }
  if (a.ss_family == AF_INET6) {
    const auto& x = reinterpret_cast<const sockaddr_in6&>(a);
    const auto& y = reinterpret_cast<const sockaddr_in6&>(b);
    return x.sin6_port == y.sin6_port &&
           std::memcmp(&x.sin6_addr, &y.sin6_addr, sizeof x.sin6_addr) == 0;
  }
  return false;
}

using NameOf = int (*)(int, sockaddr*, socklen_t*);

bool has_address(int fd, NameOf name_of, const sockaddr_storage& wanted) {
  sockaddr_storage name{};
  socklen_t length = sizeof name;
  return name_of(fd, reinterpret_cast<sockaddr*>(&name), &length) == 0 && is_same(name, wanted);
}

int number_in(const std::string& text) {
  int number = -1;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

}  // namespace

FileDescriptor duplicate_connected_socket(
    const sockaddr_storage& own, const sockaddr_storage& peer) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator{"/proc/self/fd", error}) {
    // Duplicated before it is looked at: another thread may close the number at any time.
    FileDescriptor socket{::fcntl(number_in(entry.path().filename().string()), F_DUPFD_CLOEXEC, 3)};
    if (socket.valid() && has_address(socket.get(), ::getsockname, own) &&
        has_address(socket.get(), ::getpeername, peer)) {
      return socket;
    }
  }
  return FileDescriptor{};
}

}  // namespace muster::comm
