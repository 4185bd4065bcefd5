// SPDX-License-Identifier: Apache-2.0
#include "collector/src/session.h"

#include <muster/common/log.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>

#include <exception>
#include <span>
#include <type_traits>
#include <utility>

namespace muster::collector {

namespace asio = boost::asio;

namespace {

constexpr std::size_t kReadBytes = std::size_t{64} << 10;
constexpr auto kAsValues = asio::as_tuple(asio::use_awaitable);

// The root of every coroutine: what escapes is a bug or memory running out, and ends one session.
void report(const char* where, const std::exception_ptr& error) {
  if (!error) {
    return;
  }
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& escaped) {
    log_error(
        std::string{"event=coroutine_failed where="} + where + " reason=\"" + escaped.what() +
        "\"");
  }
}

}  // namespace

Session::Session(asio::ip::tcp::socket socket, std::uint64_t id, SessionHost& host)
    : socket_(std::move(socket)),
      id_(id),
      host_(host),
      read_buffer_(kReadBytes),
      opened_at_(host.now()),
      last_received_at_(opened_at_),
      sent_at_(opened_at_) {
  reader_.limit(wire::kHelloBytesMax);
}

void Session::start() {
  asio::co_spawn(
      socket_.get_executor(),
      read_loop(shared_from_this()),
      [self = shared_from_this()](const std::exception_ptr& error) {
        report("read", error);
        self->abort();
        self->host_.closed(*self);
      });
}

asio::awaitable<void> Session::read_loop(std::shared_ptr<Session> self) {
  while (self->state_ != State::kClosed) {
    const auto [error, size] =
        co_await self->socket_.async_read_some(asio::buffer(self->read_buffer_), kAsValues);
    if (error) {
      break;
    }
    self->last_received_at_ = self->host_.now();
    if (self->state_ == State::kEnding) {
      continue;  // Read on, so that closing does not reset the connection under the Goodbye.
    }
    self->reader_.feed(std::span{self->read_buffer_}.first(size));
    for (Task task; self->next_task(task); task = Task{}) {
      while (!self->host_.submit(task)) {
        co_await wait_for_room(self);
      }
    }
  }
  self->abort();
  if (self->peer_ != nullptr) {
    // Named, for GCC 12 destroys a temporary of an awaiting expression twice.
    Task last{self->peer_, SessionClosed{self->superseded_}};
    while (!self->host_.submit(last)) {
      co_await wait_for_room(self);
    }
  }
}

asio::awaitable<void> Session::wait_for_room(std::shared_ptr<Session> self) {
  self->paused_ = true;
  co_await self->host_.wait_for_room();
  self->paused_ = false;
  self->last_received_at_ = self->host_.now();
}

bool Session::next_task(Task& task) {
  while (state_ == State::kGreeting || state_ == State::kOpen) {
    const std::size_t before = reader_.buffered_bytes();
    Expected<std::optional<wire::Message>> message = reader_.next();
    if (!message.ok() && message.status().code() == StatusCode::kUnimplemented) {
      host_.skipped_unknown_message();
      continue;
    }
    if (!message.ok()) {
      host_.damaged(*this, message.status());
      end(message.status().message(), true);
      return false;
    }
    if (!message->has_value()) {
      return false;
    }
    if (to_task(std::move(**message), before - reader_.buffered_bytes(), task)) {
      return true;
    }
  }
  return false;
}

bool Session::to_task(wire::Message message, std::size_t bytes, Task& task) {
  if (state_ == State::kGreeting) {
    greet(std::move(message), task);
    return state_ == State::kOpen;
  }
  host_.heard(*this, message);
  return std::visit(
      [&](auto& content) {
        using Content = std::decay_t<decltype(content)>;
        if constexpr (std::is_same_v<Content, wire::Goodbye>) {
          said_goodbye_ = true;  // It closes when it has seen the last ack.
          return false;
        } else if constexpr (std::is_constructible_v<Work, Content>) {
          task = Task{peer_, Work{std::move(content)}, bytes};
          return true;
        } else {
          end("a collector does not take this message", false);
          return false;
        }
      },
      message);
}

void Session::greet(wire::Message message, Task& task) {
  auto* hello = std::get_if<wire::Hello>(&message);
  if (hello == nullptr) {
    end("the first message must be a Hello", false);
    return;
  }
  auto admission = host_.admit(*this, std::move(*hello));
  if (const auto* goodbye = std::get_if<wire::Goodbye>(&admission)) {
    end(goodbye->reason, goodbye->retry);
    return;
  }
  peer_ = std::get<std::shared_ptr<const Peer>>(std::move(admission));
  state_ = State::kOpen;
  reader_.limit(wire::kFrameBytesMax);
  task = Task{peer_, SessionOpened{}};
}

void Session::send(const wire::Message& message) {
  if (state_ == State::kEnding || state_ == State::kClosed) {
    return;
  }
  if (const auto* goodbye = std::get_if<wire::Goodbye>(&message)) {
    end(goodbye->reason, goodbye->retry);
    return;
  }
  welcomed_ = welcomed_ || std::holds_alternative<wire::Welcome>(message);
  append(message);
}

void Session::append(const wire::Message& message) {
  if (const Status status = wire::append_frame(message, outbox_); !status.ok()) {
    log_error(
        "event=message_dropped session=" + std::to_string(id_) + " reason=\"" + status.to_string() +
        "\"");
    return;
  }
  if (outbox_.size() > host_.options().outbox_bytes_max) {
    host_.outbox_overflowed(*this);
    abort();
    return;
  }
  if (!std::exchange(writing_, true)) {
    write_began_at_ = host_.now();
    asio::co_spawn(
        socket_.get_executor(),
        write_loop(shared_from_this()),
        [](const std::exception_ptr& error) { report("write", error); });
  }
}

asio::awaitable<void> Session::write_loop(std::shared_ptr<Session> self) {
  while (!self->outbox_.empty() && self->state_ != State::kClosed) {
    std::swap(self->outbox_, self->in_flight_);
    self->write_began_at_ = self->host_.now();
    const auto [error, size] =
        co_await asio::async_write(self->socket_, asio::buffer(self->in_flight_), kAsValues);
    self->in_flight_.clear();
    if (error) {
      self->abort();
    }
    self->sent_at_ = self->host_.now();
  }
  self->writing_ = false;
  if (self->state_ == State::kEnding) {
    boost::system::error_code ignored;
    self->socket_.shutdown(asio::socket_base::shutdown_send, ignored);
  }
}

void Session::end(std::string reason, bool retry) {
  if (state_ == State::kEnding || state_ == State::kClosed) {
    return;
  }
  log_info("event=session_ended session=" + std::to_string(id_) + " reason=\"" + reason + "\"");
  state_ = State::kEnding;
  ending_at_ = host_.now();
  append(wire::Goodbye{std::move(reason), retry});
}

void Session::abort() {
  if (state_ == State::kClosed) {
    return;
  }
  state_ = State::kClosed;
  boost::system::error_code ignored;
  socket_.close(ignored);
}

void Session::supersede() {
  superseded_ = true;
  abort();
}

void Session::tick(MonotonicTime now) {
  const ServiceOptions& options = host_.options();
  if ((writing_ && now - write_began_at_ > options.write_timeout) ||
      (state_ == State::kEnding && now - ending_at_ > options.linger_timeout)) {
    abort();
  } else if (state_ == State::kGreeting && now - opened_at_ > options.hello_timeout) {
    end("no Hello came in time", true);
  } else if (state_ == State::kOpen && !paused_ && now - last_received_at_ > options.idle_timeout) {
    end("nothing was received for " +
            std::to_string(
                std::chrono::duration_cast<std::chrono::seconds>(options.idle_timeout).count()) +
            " s, not even a heartbeat",
        true);
  } else if (welcomed_ && state_ == State::kOpen && now - sent_at_ > options.heartbeat_interval) {
    sent_at_ = now;
    append(wire::Heartbeat{-1, std::chrono::nanoseconds{now.time_since_epoch()}.count(), {}});
  }
}

}  // namespace muster::collector
