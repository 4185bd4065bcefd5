// SPDX-License-Identifier: Apache-2.0
#include <muster/common/address.h>
#include <muster/launcher/wire_client.h>

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <limits>
#include <memory>
#include <span>
#include <utility>
#include <variant>
#include <vector>

namespace muster::launcher {

namespace {

using Addresses = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

Expected<Addresses> resolve(const std::string& text) {
  MUSTER_ASSIGN_OR_RETURN(const HostPort address, parse_peer_address(text));
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const std::string port = std::to_string(address.port);
  const int error = ::getaddrinfo(address.host.c_str(), port.c_str(), &hints, &found);
  if (error != 0) {
    return invalid_argument("'", text, "': ", ::gai_strerror(error));
  }
  return Addresses{found, &::freeaddrinfo};
}

// True when `events` came before the deadline.
bool wait_for(int fd, short events, Deadline deadline) {
  pollfd watched{fd, events, 0};
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining()).count();
    const int ms = static_cast<int>(std::min<std::int64_t>(left, std::numeric_limits<int>::max()));
    const int count = ::poll(&watched, 1, ms);
    if (count > 0) {
      return true;
    }
    if (count == 0 || errno != EINTR) {
      return false;
    }
  }
}

// errno of the connection attempt, 0 on success.
int connect_within(int fd, const addrinfo& address, Deadline deadline) {
  if (::connect(fd, address.ai_addr, address.ai_addrlen) == 0) {
    return 0;
  }
  if (errno != EINPROGRESS) {
    return errno;
  }
  if (!wait_for(fd, POLLOUT, deadline)) {
    return ETIMEDOUT;
  }
  int error = 0;
  socklen_t size = sizeof(error);
  return ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 ? error : errno;
}

Expected<FileDescriptor> open_socket(const std::string& address, Deadline deadline) {
  MUSTER_ASSIGN_OR_RETURN(const Addresses addresses, resolve(address));
  int error = 0;
  for (const addrinfo* one = addresses.get(); one != nullptr; one = one->ai_next) {
    FileDescriptor socket{::socket(one->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
    error = socket.valid() ? connect_within(socket.get(), *one, deadline) : errno;
    if (error == 0) {
      const int on = 1;
      ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
      return socket;
    }
  }
  return unavailable(
      io_error("no collector answers at " + address, error).message() +
      "; is `muster collector` running there?");
}

}  // namespace

Expected<WireClient> WireClient::connect(
    const std::string& address, const wire::Hello& hello, Deadline deadline) {
  MUSTER_ASSIGN_OR_RETURN(FileDescriptor socket, open_socket(address, deadline));
  WireClient client{std::move(socket)};
  MUSTER_RETURN_IF_ERROR(client.send(hello, deadline));
  auto answer = client.receive(deadline);
  if (!answer) {
    return answer.status().context("collector at " + address);
  }
  if (const auto* goodbye = std::get_if<wire::Goodbye>(&*answer)) {
    return failed_precondition("the collector at " + address + " refused: " + goodbye->reason);
  }
  const auto* welcome = std::get_if<wire::Welcome>(&*answer);
  if (welcome == nullptr) {
    return failed_precondition("the peer at ", address, " is not a collector");
  }
  client.welcome_ = *welcome;
  return client;
}

Status WireClient::send(const wire::Message& message, Deadline deadline) {
  std::vector<std::byte> frame;
  MUSTER_RETURN_IF_ERROR(wire::append_frame(message, frame));
  std::span<const std::byte> rest{frame};
  while (!rest.empty()) {
    const ssize_t count = ::send(socket_.get(), rest.data(), rest.size(), MSG_NOSIGNAL);
    if (count >= 0) {
      rest = rest.subspan(static_cast<std::size_t>(count));
    } else if (errno == EAGAIN) {
      if (!wait_for(socket_.get(), POLLOUT, deadline)) {
        return deadline_exceeded("the collector does not take what is sent");
      }
    } else if (errno != EINTR) {
      return unavailable(io_error("the collector is gone", errno).message());
    }
  }
  return {};
}

Expected<wire::Message> WireClient::receive(Deadline deadline) {
  std::array<std::byte, 16384> buffer{};
  while (true) {
    MUSTER_ASSIGN_OR_RETURN(std::optional<wire::Message> message, reader_.next());
    if (message) {
      return std::move(*message);
    }
    const ssize_t count = ::recv(socket_.get(), buffer.data(), buffer.size(), 0);
    if (count > 0) {
      reader_.feed(std::span{buffer.data(), static_cast<std::size_t>(count)});
    } else if (count == 0) {
      return unavailable("the collector closed the connection");
    } else if (errno == EAGAIN) {
      if (!wait_for(socket_.get(), POLLIN, deadline)) {
        return deadline_exceeded("the collector does not answer");
      }
    } else if (errno != EINTR) {
      return unavailable(io_error("the collector is gone", errno).message());
    }
  }
}

}  // namespace muster::launcher
