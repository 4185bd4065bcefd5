// SPDX-License-Identifier: Apache-2.0
// The socket side of the uplink: one io_context, one thread, plain handlers. Decisions that need no
// socket are in session.cpp and outbox.cpp.
#include "agent/src/uplink/uplink.h"

#include "agent/src/uplink/backoff.h"
#include "agent/src/uplink/session.h"

#include <muster/common/address.h>
#include <muster/common/log.h>

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>

#include <algorithm>
#include <array>
#include <thread>
#include <utility>

namespace muster::agent {

namespace asio = boost::asio;
using asio::ip::tcp;
using ErrorCode = boost::system::error_code;

// Thread-safety: the training thread calls `start`, `stop` and the destructor; all else runs on
// thread_. A handler carries the number of its connection and does nothing once that has ended.
class Uplink::Worker {
 public:
  Worker(UplinkOptions options, Channel& channel, const Clock& clock)
      : options_(std::move(options)),
        channel_(channel),
        clock_(clock),
        outbox_(options_.outbox_bytes_max, options_.schema.hash(), open_spool(options_)),
        session_(options_, channel_, outbox_),
        backoff_(options_.backoff_min, options_.backoff_max, Random{options_.seed}) {}

  ~Worker() {
    if (thread_.joinable()) {
      io_.stop();
      thread_.join();
    }
  }

  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  Worker(Worker&&) = delete;
  Worker& operator=(Worker&&) = delete;

  void start() {
    thread_ = std::thread{[this] { run(); }};
  }

  void stop(std::deque<Note> rest) {
    if (thread_.joinable()) {
      asio::post(io_, [this, notes = std::move(rest)]() mutable { flush(std::move(notes)); });
      thread_.join();
    }
  }

 private:
  // kLeaving: the Goodbye is in flight; only the end of the connection is awaited.
  enum class State { kWaiting, kConnecting, kConnected, kLeaving };

  static std::optional<Spool> open_spool(const UplinkOptions& options);
  void run();
  void tick();
  void collect();
  void connect();
  void connected();
  void read();
  void received(std::size_t size);
  void write();
  void act_on(Session::Action action);
  void lost(const std::string& reason);
  void detach(const std::string& reason);
  void flush(std::deque<Note> rest);
  void last_attempt();
  void leave_when_done();
  void close();

  UplinkOptions options_;
  Channel& channel_;
  const Clock& clock_;
  Outbox outbox_;
  Session session_;
  Backoff backoff_;

  asio::io_context io_{1};
  asio::steady_timer timer_{io_};
  tcp::resolver resolver_{io_};
  tcp::socket socket_{io_};
  std::array<std::byte, std::size_t{64} << 10> read_buffer_{};
  std::vector<std::byte> write_buffer_;
  State state_{State::kWaiting};
  std::uint64_t connection_{0};
  bool writing_{false};
  bool attached_{false};
  bool flushing_{false};
  bool last_attempt_made_{false};
  std::string reported_reason_;  // of the last logged loss
  MonotonicTime connected_at_{};
  MonotonicTime due_at_{};  // next attempt, or end of the current one
  MonotonicTime write_due_at_{};
  MonotonicTime flush_due_at_{};

  std::thread thread_;
};

std::optional<Spool> Uplink::Worker::open_spool(const UplinkOptions& options) {
  if (options.spool_directory.empty()) {
    return std::nullopt;
  }
  const std::string name =
      options.identity.run_id + ".rank-" + std::to_string(options.identity.rank.value()) + ".spool";
  auto spool = Spool::open(options.spool_directory / name, options.spool_bytes_max);
  if (!spool) {
    log_warning("event=no_spool reason=\"" + spool.status().to_string() + "\"");
    return std::nullopt;
  }
  return std::move(spool).value();
}

// A fault here must not reach the trainer.
void Uplink::Worker::run() {
  try {
    tick();
    io_.run();
  } catch (const std::exception& fault) {
    detach(std::string{"internal fault: "} + fault.what());
  }
}

void Uplink::Worker::tick() {
  collect();
  const MonotonicTime now = clock_.now();
  if (flushing_ && now >= flush_due_at_) {
    io_.stop();
    return;
  }
  switch (state_) {
    case State::kWaiting:
      if (now >= due_at_) {
        connect();
      }
      break;
    case State::kConnecting:
      if (now >= due_at_) {
        lost("no connection within the time limit");
      }
      break;
    case State::kConnected:
      if (writing_ && now >= write_due_at_) {
        lost("the collector reads nothing");
      } else {
        act_on(session_.check(now));
        write();
      }
      break;
    case State::kLeaving:
      break;
  }
  timer_.expires_after(options_.poll_interval);
  timer_.async_wait([this](const ErrorCode& error) {
    if (!error) {
      tick();
    }
  });
}

void Uplink::Worker::collect() {
  while (Note* note = channel_.notes.front()) {
    std::visit([this](auto& content) { outbox_.push(std::move(content)); }, *note);
    channel_.notes.pop();
  }
  while (const StepSample* sample = channel_.samples.front()) {
    SampleFrame frame;
    frame.step = sample->step;
    frame.wall_unix_ns = sample->wall_unix_ns;
    frame.monotonic_ns = sample->monotonic_ns;
    frame.values.resize(options_.schema.metrics.size());
    options_.fill(*sample, frame.values);
    channel_.samples.pop();
    outbox_.push(std::move(frame));
  }
  channel_.dropped_outbox_full.store(outbox_.dropped_outbox_full(), std::memory_order_relaxed);
  channel_.dropped_spool_full.store(outbox_.dropped_spool_full(), std::memory_order_relaxed);
  session_.deliver_commands();
}

void Uplink::Worker::connect() {
  state_ = State::kConnecting;
  due_at_ = clock_.now() + options_.io_timeout;
  const std::uint64_t mine = ++connection_;
  resolver_.async_resolve(
      options_.host,
      options_.port,
      [this, mine](const ErrorCode& error, const tcp::resolver::results_type& endpoints) {
        if (mine != connection_) {
          return;
        }
        if (error) {
          lost("looking up " + options_.host + ": " + error.message());
          return;
        }
        asio::async_connect(
            socket_, endpoints, [this, mine](const ErrorCode& failure, const tcp::endpoint&) {
              if (mine != connection_) {
                return;
              }
              if (failure) {
                lost("connecting: " + failure.message());
              } else {
                connected();
              }
            });
      });
}

void Uplink::Worker::connected() {
  state_ = State::kConnected;
  connected_at_ = clock_.now();
  ErrorCode ignored;
  socket_.set_option(tcp::no_delay{true}, ignored);
  session_.begin(clock_.now());
  read();
  write();
}

void Uplink::Worker::read() {
  const std::uint64_t mine = connection_;
  socket_.async_read_some(
      asio::buffer(read_buffer_), [this, mine](const ErrorCode& error, std::size_t size) {
        if (mine != connection_) {
          return;
        }
        if (state_ == State::kLeaving) {
          if (error) {
            io_.stop();
          } else {
            read();
          }
        } else if (error) {
          lost("the collector closed the connection: " + error.message());
        } else {
          received(size);
        }
      });
}

void Uplink::Worker::received(std::size_t size) {
  const std::uint64_t mine = connection_;
  act_on(session_.receive(std::span{read_buffer_}.first(size), clock_.now()));
  if (mine != connection_ || io_.stopped()) {
    return;
  }
  if (session_.is_open() && !attached_) {
    attached_ = true;
    reported_reason_.clear();
    log_info("event=collector_attached address=" + options_.host + ":" + options_.port);
  }
  write();
  read();
}

void Uplink::Worker::write() {
  if (state_ != State::kConnected || writing_) {
    return;
  }
  write_buffer_.clear();
  session_.write(write_buffer_, clock_.now());
  leave_when_done();
  if (write_buffer_.empty()) {
    return;
  }
  writing_ = true;
  write_due_at_ = clock_.now() + options_.io_timeout;
  const std::uint64_t mine = connection_;
  asio::async_write(
      socket_,
      asio::buffer(write_buffer_),
      [this, mine](const ErrorCode& error, std::size_t /*size*/) {
        if (mine != connection_) {
          return;
        }
        writing_ = false;
        if (error) {
          lost("writing: " + error.message());
        } else if (state_ == State::kLeaving) {
          ErrorCode ignored;
          socket_.shutdown(tcp::socket::shutdown_send, ignored);
        } else {
          write();
        }
      });
}

void Uplink::Worker::act_on(Session::Action action) {
  if (action == Session::Action::kReconnect) {
    lost(session_.reason());
  } else if (action == Session::Action::kDetach) {
    detach(session_.reason());
  }
}

void Uplink::Worker::lost(const std::string& reason) {
  close();
  if (attached_ || reason != reported_reason_) {
    log_warning(
        "event=collector_unreachable address=" + options_.host + ":" + options_.port +
        " reason=\"" + reason + "\"");
  }
  // Only a connection that lasted resets the backoff.
  if (attached_ && clock_.now() - connected_at_ > options_.backoff_max) {
    backoff_.reset();
  }
  attached_ = false;
  reported_reason_ = reason;
  state_ = State::kWaiting;
  due_at_ = clock_.now() + backoff_.next();
  if (!flushing_) {
    return;
  }
  if (last_attempt_made_) {
    io_.stop();
  } else {
    last_attempt();
  }
}

// The connection may have been dead before the flush began; a restarted collector is back.
void Uplink::Worker::last_attempt() {
  last_attempt_made_ = true;
  connect();
}

void Uplink::Worker::detach(const std::string& reason) {
  channel_.detached.store(true, std::memory_order_relaxed);
  log_warning("event=telemetry_detached reason=\"" + reason + "\"");
  close();
  io_.stop();
}

void Uplink::Worker::flush(std::deque<Note> rest) {
  flushing_ = true;
  flush_due_at_ = clock_.now() + options_.flush_timeout;
  collect();
  for (Note& note : rest) {
    std::visit([this](auto& content) { outbox_.push(std::move(content)); }, note);
  }
  if (state_ == State::kWaiting) {
    last_attempt();  // A failure ends the flush.
  }
  write();
}

// Once everything is acknowledged, sends the Goodbye; the collector then closes.
void Uplink::Worker::leave_when_done() {
  if (flushing_ && session_.is_open() && outbox_.empty()) {
    Session::write_goodbye(write_buffer_);
    state_ = State::kLeaving;
  }
}

void Uplink::Worker::close() {
  ++connection_;
  writing_ = false;
  resolver_.cancel();
  ErrorCode ignored;
  socket_.close(ignored);
}

Status parse_address(const std::string& address, UplinkOptions& options) {
  const auto parsed = parse_peer_address(address);
  if (!parsed) {
    return parsed.status().context("MUSTER_COLLECTOR");
  }
  options.host = parsed->host;
  options.port = std::to_string(parsed->port);
  return {};
}

Uplink::Uplink(UplinkOptions options, Channel& channel, const Clock& clock)
    : worker_(std::make_unique<Worker>(std::move(options), channel, clock)) {}

Uplink::~Uplink() = default;

void Uplink::start() {
  worker_->start();
}

void Uplink::stop(std::deque<Note> rest) {
  worker_->stop(std::move(rest));
}

}  // namespace muster::agent
