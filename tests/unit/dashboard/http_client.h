// SPDX-License-Identifier: Apache-2.0
// A blocking HTTP client of raw bytes, so that tests also say what no well-behaved client would.
#pragma once

#include <gtest/gtest.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string>

namespace muster::dashboard {

class HttpClient {
 public:
  // `address`: "127.0.0.1:PORT". Reads give up after a minute.
  explicit HttpClient(const std::string& address) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in target{};
    target.sin_family = AF_INET;
    const int port = std::atoi(address.substr(address.rfind(':') + 1).c_str());
    target.sin_port = htons(static_cast<std::uint16_t>(port));
    target.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const timeval patience{60, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    const void* raw = &target;
    EXPECT_EQ(::connect(fd_, static_cast<const sockaddr*>(raw), sizeof(target)), 0);
  }

  ~HttpClient() { ::close(fd_); }

  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;
  HttpClient(HttpClient&&) = delete;
  HttpClient& operator=(HttpClient&&) = delete;

  void send(const std::string& bytes) const {
    ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }

  // Everything until the server closes.
  std::string read_to_end() {
    while (read_some()) {
    }
    return std::exchange(received_, {});
  }

  // Everything up to and including `mark`; what came before it when the server closes first.
  std::string read_until(const std::string& mark) {
    while (received_.find(mark) == std::string::npos && read_some()) {
    }
    const std::size_t found = received_.find(mark);
    const std::size_t end = found == std::string::npos ? received_.size() : found + mark.size();
    std::string text = received_.substr(0, end);
    received_.erase(0, end);
    return text;
  }

  // Whether a read has met the server's end of the connection.
  [[nodiscard]] bool is_closed() const { return is_closed_; }

 private:
  bool read_some() {
    char buffer[4096];
    const ssize_t count = ::recv(fd_, buffer, sizeof(buffer), 0);
    if (count <= 0) {
      is_closed_ = count == 0 || errno == ECONNRESET;
      return false;
    }
    received_.append(buffer, static_cast<std::size_t>(count));
    return true;
  }

  int fd_;
  bool is_closed_{false};
  std::string received_;
};

// One request, the whole answer.
inline std::string fetch(
    const std::string& address, const std::string& target, const std::string& method = "GET") {
  HttpClient client{address};
  client.send(method + " " + target + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
  return client.read_to_end();
}

}  // namespace muster::dashboard
