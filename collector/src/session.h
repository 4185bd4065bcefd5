// SPDX-License-Identifier: Apache-2.0
// One connection: greeting, reading, a bounded outbox, farewell.
//
// Lives on the I/O thread; kept alive by its coroutines. Deadlines (hello, idle, write, linger) are
// judged by `tick` on the injected clock, so that no operation needs a timer of its own.
#pragma once

#include "collector/src/service_options.h"
#include "collector/src/task.h"

#include <muster/common/clock.h>
#include <muster/wire/codec.h>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

namespace muster::collector {

class Session;

// Services that a session uses from the server.
class SessionHost {
 public:
  SessionHost() = default;
  SessionHost(const SessionHost&) = delete;
  SessionHost& operator=(const SessionHost&) = delete;
  SessionHost(SessionHost&&) = delete;
  SessionHost& operator=(SessionHost&&) = delete;
  virtual ~SessionHost() = default;

  [[nodiscard]] virtual const ServiceOptions& options() const = 0;
  [[nodiscard]] virtual MonotonicTime now() const = 0;

  // Admits the peer, or returns the reason for refusing it.
  [[nodiscard]] virtual std::variant<std::shared_ptr<const Peer>, wire::Goodbye> admit(
      Session& session, wire::Hello hello) = 0;
  // An admitted peer has spoken.
  virtual void heard(const Session& session, const wire::Message& message) = 0;
  // False when the writer's queue is full.
  [[nodiscard]] virtual bool submit(Task& task) = 0;
  [[nodiscard]] virtual boost::asio::awaitable<void> wait_for_room() = 0;
  virtual void damaged(const Session& session, const Status& status) = 0;
  virtual void skipped_unknown_message() = 0;
  virtual void outbox_overflowed(const Session& session) = 0;
  // The socket is closed and everything it sent has been submitted.
  virtual void closed(const Session& session) = 0;
};

class Session : public std::enable_shared_from_this<Session> {
 public:
  Session(boost::asio::ip::tcp::socket socket, std::uint64_t id, SessionHost& host);

  void start();

  // Queues a message. Ends the session when the outbox is full.
  void send(const wire::Message& message);

  // Sends the last word, then closes once the peer has read it or the linger time is over.
  void end(std::string reason, bool retry);

  // At once, without a word.
  void abort();

  // The same process is back on another connection: this one ends and does not count as lost.
  void supersede();

  // Enforces deadlines, sends heartbeats.
  void tick(MonotonicTime now);

  [[nodiscard]] std::uint64_t id() const { return id_; }

  [[nodiscard]] const std::shared_ptr<const Peer>& peer() const { return peer_; }

  [[nodiscard]] bool welcomed() const { return welcomed_; }

  [[nodiscard]] bool said_goodbye() const { return said_goodbye_; }

  [[nodiscard]] bool superseded() const { return superseded_; }

 private:
  enum class State : std::uint8_t { kGreeting, kOpen, kEnding, kClosed };

  [[nodiscard]] static boost::asio::awaitable<void> read_loop(std::shared_ptr<Session> self);
  [[nodiscard]] static boost::asio::awaitable<void> write_loop(std::shared_ptr<Session> self);
  [[nodiscard]] static boost::asio::awaitable<void> wait_for_room(std::shared_ptr<Session> self);

  // The next task of the buffered bytes; none when more are needed or the session is ending.
  [[nodiscard]] bool next_task(Task& task);
  [[nodiscard]] bool to_task(wire::Message message, std::size_t bytes, Task& task);
  void greet(wire::Message message, Task& task);
  void append(const wire::Message& message);

  boost::asio::ip::tcp::socket socket_;
  const std::uint64_t id_;
  SessionHost& host_;
  std::shared_ptr<const Peer> peer_;
  State state_{State::kGreeting};

  wire::FrameReader reader_;
  std::vector<std::byte> read_buffer_;
  std::vector<std::byte> outbox_;     // Waits.
  std::vector<std::byte> in_flight_;  // Is being written.

  bool writing_{false};
  bool paused_{false};  // By the writer's queue: the peer is not to blame for the silence.
  bool welcomed_{false};
  bool said_goodbye_{false};
  bool superseded_{false};
  MonotonicTime opened_at_;
  MonotonicTime last_received_at_;
  MonotonicTime sent_at_;
  MonotonicTime write_began_at_;
  MonotonicTime ending_at_;
};

}  // namespace muster::collector
