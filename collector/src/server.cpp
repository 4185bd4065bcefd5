// SPDX-License-Identifier: Apache-2.0
#include "collector/src/server.h"

#include "collector/src/handshake.h"
#include "collector/src/liveness.h"
#include "collector/src/run_directory.h"
#include "collector/src/session.h"

#include <muster/common/address.h>
#include <muster/common/log.h>
#include <muster/common/text.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <exception>
#include <map>
#include <optional>
#include <thread>
#include <tuple>
#include <utility>

namespace muster::collector {

namespace asio = boost::asio;
using asio::ip::tcp;

namespace {

constexpr auto kAsValues = asio::as_tuple(asio::use_awaitable);
constexpr std::chrono::milliseconds kAcceptRetry{100};

using ProcessKey = std::tuple<std::string, Generation, Rank, std::string>;

ProcessKey key_of(const Identity& identity) {
  return {identity.run_id, identity.generation, identity.rank, identity.incarnation};
}

std::int64_t step_of(const wire::Message& message) {
  if (const auto* heartbeat = std::get_if<wire::Heartbeat>(&message)) {
    return heartbeat->step;
  }
  const auto* batch = std::get_if<wire::SampleBatch>(&message);
  return batch != nullptr && !batch->frames.empty() ? batch->frames.back().step : -1;
}

bool dismisses(const wire::Message& message) {
  const auto* content = std::get_if<wire::EventMessage>(&message);
  return content != nullptr && (content->event.kind == event_kind::kRunEnded ||
                                content->event.kind == event_kind::kRestart);
}

Status bind_error(const boost::system::error_code& error, const std::string& address) {
  if (error == asio::error::address_in_use) {
    return already_exists(
        "port " + address.substr(address.rfind(':') + 1) + " (" + address +
        ") is in use, perhaps by another collector; stop it or choose another port with --listen");
  }
  return io_error("listening on " + address, error.value());
}

class TcpServer final : public Server, public SessionHost {
 public:
  TcpServer(
      std::string token,
      const ServiceOptions& options,
      const Clock& clock,
      Metrics& metrics,
      TaskQueue& queue)
      : token_(std::move(token)),
        options_(options),
        clock_(clock),
        metrics_(metrics),
        queue_(queue),
        liveness_(options.rank_lost_after) {}

  ~TcpServer() override { stop(); }  // NOLINT(bugprone-exception-escape): ends the process, rightly

  TcpServer(const TcpServer&) = delete;
  TcpServer& operator=(const TcpServer&) = delete;
  TcpServer(TcpServer&&) = delete;
  TcpServer& operator=(TcpServer&&) = delete;

  [[nodiscard]] Status bind(const std::string& text);

  // Server.
  [[nodiscard]] std::string address() const override { return address_; }

  void load(const std::vector<store::RunLine>& lines) override { runs_.load(lines); }

  void start() override;
  void stop() override;

  // AnswerSink, on the writer thread.
  void deliver(std::vector<Answer> answers) override;
  void restart_sessions(std::string reason) override;
  void queue_has_room() override;

  // SessionHost, on the I/O thread.
  [[nodiscard]] const ServiceOptions& options() const override { return options_; }

  [[nodiscard]] MonotonicTime now() const override { return clock_.now(); }

  [[nodiscard]] std::variant<std::shared_ptr<const Peer>, wire::Goodbye> admit(
      Session& session, wire::Hello hello) override;
  void heard(const Session& session, const wire::Message& message) override;
  [[nodiscard]] bool submit(Task& task) override;
  [[nodiscard]] asio::awaitable<void> wait_for_room() override;
  void damaged(const Session& session, const Status& status) override;

  void skipped_unknown_message() override { ++metrics_.messages_unknown; }

  void outbox_overflowed(const Session& session) override;
  void closed(const Session& session) override;

 private:
  [[nodiscard]] static asio::awaitable<void> accept_loop(TcpServer* self);
  [[nodiscard]] static asio::awaitable<void> tick_loop(TcpServer* self);
  void spawn(asio::awaitable<void> loop, const char* name);
  void begin_stop();
  void tick();
  void send(const Reply& reply);
  void send(const Broadcast& broadcast);
  void report_connected();

  const std::string token_;
  const ServiceOptions& options_;
  const Clock& clock_;
  Metrics& metrics_;
  TaskQueue& queue_;
  std::string address_;

  // I/O thread only, once it runs.
  asio::io_context context_{1};
  tcp::acceptor acceptor_{context_};
  asio::steady_timer tick_timer_{context_};
  asio::steady_timer room_timer_{context_, asio::steady_timer::time_point::max()};
  Liveness liveness_;
  RunDirectory runs_;
  std::map<std::uint64_t, std::shared_ptr<Session>> sessions_;
  std::map<ProcessKey, std::uint64_t> agents_;
  std::vector<LivenessFinding> findings_;  // Not submitted yet.
  std::uint64_t next_session_id_{1};
  std::optional<MonotonicTime> stop_until_;

  std::thread thread_;
};

Status TcpServer::bind(const std::string& text) {
  MUSTER_ASSIGN_OR_RETURN(const HostPort wanted, parse_listen_address(text));
  boost::system::error_code error;
  const asio::ip::address host = asio::ip::make_address(wanted.host, error);
  if (error) {
    return invalid_argument(
        "'", wanted.host, "' is not a numeric address; write it as 127.0.0.1 or [::1]");
  }
  if (!host.is_loopback() && token_.empty()) {
    return invalid_argument(
        "listening on " + text +
        ", which other machines can reach, needs a token; start the "
        "collector with one or listen on 127.0.0.1");
  }
  const tcp::endpoint endpoint{host, wanted.port};
  static_cast<void>(acceptor_.open(endpoint.protocol(), error));
  if (!error) {
    static_cast<void>(acceptor_.set_option(tcp::acceptor::reuse_address{true}, error));
  }
  if (!error) {
    static_cast<void>(acceptor_.bind(endpoint, error));
  }
  if (!error) {
    static_cast<void>(acceptor_.listen(asio::socket_base::max_listen_connections, error));
  }
  if (error) {
    return bind_error(error, text);
  }
  const tcp::endpoint bound = acceptor_.local_endpoint(error);
  const std::string name = bound.address().to_string();
  address_ = concat(bound.address().is_v6() ? "[" + name + "]" : name, ':', bound.port());
  return {};
}

void TcpServer::start() {
  spawn(accept_loop(this), "accept");
  spawn(tick_loop(this), "tick");
  thread_ = std::thread{[this] { context_.run(); }};
}

void TcpServer::spawn(asio::awaitable<void> loop, const char* name) {
  asio::co_spawn(context_, std::move(loop), [name](const std::exception_ptr& error) {
    if (error) {
      log_error(std::string{"event=coroutine_failed where="} + name);
    }
  });
}

void TcpServer::stop() {
  if (!thread_.joinable()) {
    return;
  }
  asio::post(context_, [this] { begin_stop(); });
  thread_.join();
}

void TcpServer::begin_stop() {
  stop_until_ = now() + options_.linger_timeout;
  boost::system::error_code ignored;
  acceptor_.close(ignored);
  for (const auto& [id, session] : sessions_) {
    session->end("the collector is stopping", true);
  }
  tick_timer_.cancel();
}

asio::awaitable<void> TcpServer::accept_loop(TcpServer* self) {
  asio::steady_timer pause{self->context_};
  while (self->acceptor_.is_open()) {
    auto [error, socket] = co_await self->acceptor_.async_accept(kAsValues);
    if (error == asio::error::operation_aborted) {
      continue;
    }
    if (error) {
      // Out of descriptors, or the peer was gone already: neither may end the service.
      log_warning("event=accept_failed reason=\"" + error.message() + "\"");
      pause.expires_after(kAcceptRetry);
      co_await pause.async_wait(kAsValues);
      continue;
    }
    if (self->sessions_.size() >= self->options_.sessions_max) {
      ++self->metrics_.sessions_refused;
      continue;
    }
    boost::system::error_code ignored;
    static_cast<void>(socket.set_option(tcp::no_delay{true}, ignored));
    const std::uint64_t id = self->next_session_id_++;
    const auto session = std::make_shared<Session>(std::move(socket), id, *self);
    self->sessions_.emplace(id, session);
    session->start();
  }
}

asio::awaitable<void> TcpServer::tick_loop(TcpServer* self) {
  while (!self->stop_until_.has_value() || !self->sessions_.empty()) {
    self->tick_timer_.expires_after(self->options_.tick_interval);
    co_await self->tick_timer_.async_wait(kAsValues);
    self->tick();
  }
}

void TcpServer::tick() {
  const MonotonicTime time = now();
  const bool out_of_patience = stop_until_.has_value() && time >= *stop_until_;
  for (const auto& [id, session] : sessions_) {
    if (out_of_patience) {
      session->abort();
    } else {
      session->tick(time);
    }
  }
  if (stop_until_.has_value()) {
    return;
  }
  for (LivenessFinding& found : liveness_.judge(time)) {
    findings_.push_back(std::move(found));
  }
  while (!findings_.empty()) {
    const LivenessFinding& next = findings_.front();
    Task task{nullptr, FindingRaised{next.run_id, next.generation, next.finding}};
    if (!submit(task)) {
      return;
    }
    findings_.erase(findings_.begin());
  }
}

void TcpServer::deliver(std::vector<Answer> answers) {
  asio::post(context_, [this, answers = std::move(answers)] {
    for (const Answer& answer : answers) {
      std::visit([this](const auto& content) { send(content); }, answer);
    }
  });
}

void TcpServer::send(const Reply& reply) {
  if (const auto found = sessions_.find(reply.session_id); found != sessions_.end()) {
    found->second->send(reply.message);
  }
}

// A session that is not welcomed yet gets the command with its initial list: both lists come from
// the writer in one order.
void TcpServer::send(const Broadcast& broadcast) {
  for (const auto& [id, session] : sessions_) {
    if (!session->welcomed() || session->peer()->hello.role != wire::PeerRole::kAgent) {
      continue;
    }
    const Identity& identity = session->peer()->hello.identity;
    if (identity.run_id == broadcast.run_id && identity.generation == broadcast.generation) {
      session->send(wire::CommandMessage{broadcast.command});
    }
  }
}

void TcpServer::restart_sessions(std::string reason) {
  asio::post(context_, [this, reason = std::move(reason)] {
    for (const auto& [id, session] : sessions_) {
      session->end(reason, true);
    }
  });
}

void TcpServer::queue_has_room() {
  asio::post(context_, [this] { room_timer_.cancel(); });
}

asio::awaitable<void> TcpServer::wait_for_room() {
  co_await room_timer_.async_wait(kAsValues);
}

bool TcpServer::submit(Task& task) {
  const bool taken = queue_.try_push(task);
  metrics_.queue_full += taken ? 0 : 1;
  return taken;
}

std::variant<std::shared_ptr<const Peer>, wire::Goodbye> TcpServer::admit(
    Session& session, wire::Hello hello) {
  auto admission = collector::admit(hello, token_);
  if (auto* goodbye = std::get_if<wire::Goodbye>(&admission)) {
    ++metrics_.sessions_refused;
    return std::move(*goodbye);
  }
  ++metrics_.sessions_accepted;
  hello.token.clear();  // Checked and no longer needed.
  store::RunLine line;
  if (hello.role != wire::PeerRole::kOperator) {
    line = runs_.line_of(hello.identity);
    hello.identity.run_id = line.name;
  }
  auto peer = std::make_shared<const Peer>(Peer{session.id(), std::move(hello), std::move(line)});
  if (peer->hello.role == wire::PeerRole::kAgent) {
    const auto [place, fresh] = agents_.try_emplace(key_of(peer->hello.identity), session.id());
    if (!fresh) {
      if (const auto old = sessions_.find(place->second); old != sessions_.end()) {
        old->second->supersede();
      }
      place->second = session.id();
    }
  }
  liveness_.opened(peer->hello, now());
  report_connected();
  return peer;
}

void TcpServer::heard(const Session& session, const wire::Message& message) {
  const wire::Hello& hello = session.peer()->hello;
  liveness_.heard(hello, step_of(message), now());
  if (hello.role == wire::PeerRole::kLauncher && dismisses(message)) {
    liveness_.dismissed(hello.identity.run_id);
  }
}

void TcpServer::damaged(const Session& session, const Status& status) {
  ++metrics_.streams_damaged;
  log_warning(
      "event=stream_damaged session=" + std::to_string(session.id()) + " reason=\"" +
      status.to_string() + "\"");
}

void TcpServer::outbox_overflowed(const Session& session) {
  ++metrics_.outbox_overflows;
  log_warning("event=outbox_overflow session=" + std::to_string(session.id()));
}

void TcpServer::closed(const Session& session) {
  if (session.peer() != nullptr && !session.superseded()) {
    const wire::Hello& hello = session.peer()->hello;
    liveness_.closed(hello, session.said_goodbye(), now());
    if (const auto found = agents_.find(key_of(hello.identity));
        found != agents_.end() && found->second == session.id()) {
      agents_.erase(found);
    }
  }
  sessions_.erase(session.id());
  report_connected();
}

void TcpServer::report_connected() {
  std::map<std::string, std::int64_t> agents_by_run;
  for (const auto& [key, session_id] : agents_) {
    ++agents_by_run[std::get<0>(key)];
  }
  metrics_.report_connected(std::move(agents_by_run), static_cast<std::int64_t>(sessions_.size()));
}

}  // namespace

Expected<std::unique_ptr<Server>> Server::listen(
    const std::string& address,
    std::string token,
    const ServiceOptions& options,
    const Clock& clock,
    Metrics& metrics,
    TaskQueue& queue) {
  auto server = std::make_unique<TcpServer>(std::move(token), options, clock, metrics, queue);
  MUSTER_RETURN_IF_ERROR(server->bind(address));
  return std::unique_ptr<Server>{std::move(server)};
}

}  // namespace muster::collector
