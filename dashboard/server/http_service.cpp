// SPDX-License-Identifier: Apache-2.0
#include "dashboard/server/http_service.h"

#include <muster/common/address.h>
#include <muster/common/log.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <list>
#include <optional>
#include <thread>
#include <tuple>
#include <utility>

namespace muster::dashboard {

namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using boost::system::error_code;

// g++ 12 destroys temporaries inside a co_await expression twice: what has a destructor is a named
// variable in the coroutines below.
constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);

std::string address_text(const tcp::endpoint& endpoint) {
  return to_string(HostPort{endpoint.address().to_string(), endpoint.port()});
}

Status listen_error(const std::string& listen, const error_code& error) {
  if (error == asio::error::address_in_use) {
    return already_exists(
        "dashboard port in use: " + listen +
        "; stop the program that holds it, or choose another (port 0 picks a free one)");
  }
  if (error == asio::error::access_denied) {
    return failed_precondition(
        "dashboard may not listen on " + listen + " (" + error.message() +
        "); choose a port above 1023");
  }
  return unavailable("dashboard cannot listen on " + listen + ": " + error.message());
}

Expected<tcp::acceptor> open_acceptor(asio::io_context& io, const std::string& listen) {
  const Expected<HostPort> parsed = parse_listen_address(listen);
  if (!parsed) {
    return parsed.status().context("dashboard");
  }
  const HostPort& address = *parsed;
  error_code error;
  const auto host = asio::ip::make_address(address.host, error);
  if (error) {
    return invalid_argument(
        "dashboard address \"" + listen + "\": " + address.host +
        " is not an IP address; use for example 127.0.0.1:29680");
  }
  const tcp::endpoint endpoint{host, address.port};
  tcp::acceptor acceptor{io};
  acceptor.open(endpoint.protocol(), error);
  if (!error) {
    acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  }
  if (!error) {
    acceptor.bind(endpoint, error);
  }
  if (!error) {
    acceptor.listen(asio::socket_base::max_listen_connections, error);
  }
  if (error) {
    return listen_error(listen, error);
  }
  return acceptor;
}

HttpRequest plain_request(const http::request<http::string_body>& request) {
  HttpRequest plain;
  plain.method = std::string(request.method_string());
  plain.target = std::string(request.target());
  plain.body = request.body();
  for (const auto& field : request) {
    std::string name(field.name_string());
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char letter) {
      return static_cast<char>(letter >= 'A' && letter <= 'Z' ? letter + ('a' - 'A') : letter);
    });
    plain.headers.emplace(std::move(name), std::string(field.value()));
  }
  // "GET http://host:port/path" names the host in the target, which counts before the header.
  const std::size_t scheme = plain.target.find("://");
  if (beast::iequals(plain.target.substr(0, scheme), "http") && scheme != std::string::npos) {
    const std::size_t host = scheme + 3;
    const std::size_t path = std::min(plain.target.find_first_of("/?", host), plain.target.size());
    plain.headers.insert_or_assign("host", plain.target.substr(host, path - host));
    plain.target.erase(0, path);
    if (!plain.target.starts_with('/')) {
      plain.target.insert(0, "/");
    }
  }
  return plain;
}

HttpResponse plain_error(int status, std::string text) {
  HttpResponse response;
  response.status = status;
  response.body = std::move(text);
  return response;
}

// State of one connection, in the coroutine's frame; listed so that stop() can close it.
struct Connection {
  explicit Connection(tcp::socket socket)
      : stream(std::move(socket)), timer(stream.get_executor()) {}

  beast::tcp_stream stream;
  asio::steady_timer timer;
  beast::flat_buffer buffer;
  bool closing{false};

  void close() {
    closing = true;
    error_code ignored;
    stream.socket().close(ignored);
    timer.cancel();
  }
};

class BeastService final : public HttpService {
 public:
  BeastService(Handler handler, HttpLimits limits)
      : handler_(std::move(handler)), limits_(limits), worker_(1) {}

  BeastService(const BeastService&) = delete;
  BeastService& operator=(const BeastService&) = delete;
  BeastService(BeastService&&) = delete;
  BeastService& operator=(BeastService&&) = delete;

  ~BeastService() override { stop(); }  // NOLINT(bugprone-exception-escape): ends the process

  Status listen(const std::string& listen) {
    MUSTER_ASSIGN_OR_RETURN(acceptor_, open_acceptor(io_, listen));
    endpoint_ = acceptor_->local_endpoint();
    asio::co_spawn(
        io_, accept_loop(), [](const std::exception_ptr& error) { report("accept", error); });
    thread_ = std::thread([this] { io_.run(); });
    return {};
  }

  [[nodiscard]] std::string address() const override { return address_text(endpoint_); }

  [[nodiscard]] bool is_loopback() const override { return endpoint_.address().is_loopback(); }

  void stop() override {
    if (!thread_.joinable()) {
      return;
    }
    asio::post(io_, [this] {
      stopping_ = true;
      error_code ignored;
      acceptor_->close(ignored);
      for (Connection* connection : connections_) {
        connection->close();
      }
    });
    thread_.join();
    worker_.join();
  }

 private:
  static void report(const char* where, const std::exception_ptr& error) {
    if (!error) {
      return;
    }
    try {
      std::rethrow_exception(error);
    } catch (const std::exception& failure) {
      log_error(
          std::string("event=dashboard_failed where=") + where + " reason=\"" + failure.what() +
          "\"");
    }
  }

  asio::awaitable<void> accept_loop() {
    asio::steady_timer pause{io_};
    while (!stopping_) {
      auto [error, socket] = co_await acceptor_->async_accept(kAwait);
      if (stopping_) {
        break;
      }
      if (error) {  // Out of descriptors, most likely: a later try may find one.
        pause.expires_after(std::chrono::milliseconds{100});
        co_await pause.async_wait(kAwait);
        continue;
      }
      if (connections_.size() >= limits_.connections_max) {
        continue;  // Dropping the socket closes it; the browser retries.
      }
      asio::co_spawn(io_, serve(std::move(socket)), [](const std::exception_ptr& failure) {
        report("connection", failure);
      });
    }
  }

  asio::awaitable<void> serve(tcp::socket socket) {
    Connection connection{std::move(socket)};
    error_code ignored;
    connection.stream.socket().set_option(tcp::no_delay(true), ignored);
    const auto place = connections_.insert(connections_.end(), &connection);
    bool keep = true;
    while (keep && !connection.closing) {
      keep = co_await serve_one(connection);
    }
    connections_.erase(place);
    connection.stream.socket().shutdown(tcp::socket::shutdown_send, ignored);
  }

  // Reads one request and answers it. Returns false when the connection has ended.
  asio::awaitable<bool> serve_one(Connection& connection) {
    http::request_parser<http::string_body> parser;
    parser.header_limit(limits_.header_bytes_max);
    parser.body_limit(limits_.body_bytes_max);
    connection.stream.expires_after(limits_.read_deadline);
    const error_code error = co_await read(connection, parser);
    if (error) {
      const std::optional<HttpResponse> refusal = refuse(error);
      if (refusal && !connection.closing) {
        const Framing last{};
        co_await write(connection, *refusal, last);
      }
      co_return false;
    }
    const auto& request = parser.get();
    const Framing framing{
        request.version(), request.keep_alive(), request.method() == http::verb::head};
    HttpRequest plain = plain_request(request);
    HttpResponse response = co_await on_worker(std::move(plain));
    if (response.stream && !framing.head) {
      co_await write_stream(connection, response);
      co_return false;
    }
    co_return co_await write(connection, response, framing) && framing.keep_alive;
  }

  // A client that asks whether to send its body is answered before it is read.
  static asio::awaitable<error_code> read(
      Connection& connection, http::request_parser<http::string_body>& parser) {
    auto [error, size] =
        co_await http::async_read_header(connection.stream, connection.buffer, parser, kAwait);
    if (!error && !parser.is_done() &&
        beast::iequals(parser.get()[http::field::expect], "100-continue")) {
      static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
      std::tie(error, size) = co_await asio::async_write(
          connection.stream, asio::buffer(kContinue.data(), kContinue.size()), kAwait);
    }
    if (!error) {
      std::tie(error, size) =
          co_await http::async_read(connection.stream, connection.buffer, parser, kAwait);
    }
    co_return error;
  }

  struct Framing {
    unsigned version{11};
    bool keep_alive{false};
    bool head{false};
  };

  // Answer to a client whose request could not be read; nullopt if it disconnected.
  [[nodiscard]] std::optional<HttpResponse> refuse(const error_code& error) const {
    if (error == http::error::body_limit) {
      return plain_error(
          413, "the body is larger than " + std::to_string(limits_.body_bytes_max) + " bytes\n");
    }
    if (error == http::error::header_limit) {
      return plain_error(
          431,
          "the header is larger than " + std::to_string(limits_.header_bytes_max) + " bytes\n");
    }
    if (error == http::error::end_of_stream || error == http::error::partial_message ||
        error.category() != http::make_error_code(http::error::bad_method).category()) {
      return std::nullopt;
    }
    return plain_error(400, "not an HTTP request: " + error.message() + "\n");
  }

  // Runs `work` on the worker thread and comes back to the I/O thread with its result.
  template <typename Result>
  asio::awaitable<Result> run_on_worker(std::function<Result()> work) {
    co_return co_await asio::async_initiate<const asio::use_awaitable_t<>, void(Result)>(
        [this](auto done, std::function<Result()> job) {
          asio::post(worker_, [done = std::move(done), job = std::move(job)]() mutable {
            Result result = job();
            auto executor = asio::get_associated_executor(done);
            asio::post(executor, [done = std::move(done), result = std::move(result)]() mutable {
              std::move(done)(std::move(result));
            });
          });
        },
        asio::use_awaitable,
        std::move(work));
  }

  asio::awaitable<HttpResponse> on_worker(HttpRequest request) {
    if (jobs_ >= limits_.jobs_max) {
      HttpResponse busy = plain_error(503, "the dashboard is busy; try again in a second\n");
      busy.headers.emplace_back("Retry-After", "1");
      co_return busy;
    }
    ++jobs_;
    std::function<HttpResponse()> job = [this, request = std::move(request)] {
      return handler_(request);
    };
    HttpResponse response = co_await run_on_worker<HttpResponse>(std::move(job));
    --jobs_;
    co_return response;
  }

  static void set_fields(http::response<http::string_body>& message, const HttpResponse& response) {
    message.result(static_cast<unsigned>(response.status));
    message.set(http::field::server, "muster");
    message.set(http::field::content_type, response.content_type);
    for (const auto& [name, value] : response.headers) {
      message.set(name, value);
    }
  }

  asio::awaitable<bool> write(
      Connection& connection, const HttpResponse& response, Framing framing) {
    http::response<http::string_body> message;
    message.version(framing.version);
    set_fields(message, response);
    message.keep_alive(framing.keep_alive);
    message.body() = response.body;
    message.prepare_payload();
    connection.stream.expires_after(limits_.write_deadline);
    http::response_serializer<http::string_body> serializer{message};
    if (framing.head) {
      auto [error, size] = co_await http::async_write_header(connection.stream, serializer, kAwait);
      co_return !error;
    }
    auto [error, size] = co_await http::async_write(connection.stream, serializer, kAwait);
    co_return !error;
  }

  // A stream ends with its connection: no length is announced. The next piece is asked for only
  // when the last one is on its way, so a slow client costs one piece of memory and no more.
  asio::awaitable<void> write_stream(Connection& connection, HttpResponse& response) {
    http::response<http::string_body> message;
    message.version(11);
    set_fields(message, response);
    message.keep_alive(false);
    http::response_serializer<http::string_body> serializer{message};
    connection.stream.expires_after(limits_.write_deadline);
    auto [error, size] = co_await http::async_write_header(connection.stream, serializer, kAwait);
    while (!error && !connection.closing) {
      HttpResponse::Stream job = response.stream;
      std::optional<std::string> piece =
          co_await run_on_worker<std::optional<std::string>>(std::move(job));
      if (!piece || connection.closing) {
        break;
      }
      if (!piece->empty()) {
        connection.stream.expires_after(limits_.write_deadline);
        auto [write_error, written] =
            co_await asio::async_write(connection.stream, asio::buffer(*piece), kAwait);
        error = write_error;
      }
      if (!error && !connection.closing) {
        connection.timer.expires_after(limits_.stream_interval);
        co_await connection.timer.async_wait(kAwait);
      }
    }
  }

  Handler handler_;
  HttpLimits limits_;
  asio::io_context io_{1};
  asio::thread_pool worker_;
  std::optional<tcp::acceptor> acceptor_;
  tcp::endpoint endpoint_;

  // The I/O thread's own.
  std::list<Connection*> connections_;
  std::size_t jobs_{0};
  bool stopping_{false};

  std::thread thread_;
};

}  // namespace

Expected<std::unique_ptr<HttpService>> HttpService::start(
    const std::string& listen, Handler handler, HttpLimits limits) {
  auto service = std::make_unique<BeastService>(std::move(handler), limits);
  MUSTER_RETURN_IF_ERROR(service->listen(listen));
  return std::unique_ptr<HttpService>(std::move(service));
}

}  // namespace muster::dashboard
