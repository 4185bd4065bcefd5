// SPDX-License-Identifier: Apache-2.0
// HTTP/1.1 over TCP: accepts, reads with limits and deadlines, hands requests to a handler, writes.
//
// Threads: one I/O thread owns every socket; one worker thread runs the handler and the streams, so
// a slow query never delays another client's bytes. The only translation unit that sees Beast.
#pragma once

#include "dashboard/server/http_message.h"

#include <muster/common/expected.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace muster::dashboard {

struct HttpLimits {
  std::uint32_t header_bytes_max{16 * 1024};
  std::uint64_t body_bytes_max{std::uint64_t{16} * 1024};
  std::size_t connections_max{256};
  std::size_t jobs_max{256};                         // requests waiting for the worker
  std::chrono::milliseconds read_deadline{15'000};   // a whole request, idle keep-alive included
  std::chrono::milliseconds write_deadline{30'000};  // a whole response, or one piece of a stream
  std::chrono::milliseconds stream_interval{250};
};

class HttpService {
 public:
  // On the worker thread. Must not throw.
  using Handler = std::function<HttpResponse(const HttpRequest&)>;

  // `listen`: "host:port" or "[v6]:port"; port 0 picks a free one. kInvalidArgument for a malformed
  // address, kAlreadyExists naming the port when it is taken.
  [[nodiscard]] static Expected<std::unique_ptr<HttpService>> start(
      const std::string& listen, Handler handler, HttpLimits limits = {});

  HttpService() = default;
  HttpService(const HttpService&) = delete;
  HttpService& operator=(const HttpService&) = delete;
  HttpService(HttpService&&) = delete;
  HttpService& operator=(HttpService&&) = delete;
  virtual ~HttpService() = default;

  // "127.0.0.1:29680", "[::1]:29680": the address bound.
  [[nodiscard]] virtual std::string address() const = 0;
  [[nodiscard]] virtual bool is_loopback() const = 0;

  // Closes every connection and joins both threads. Idempotent; not from the handler.
  virtual void stop() = 0;
};

}  // namespace muster::dashboard
