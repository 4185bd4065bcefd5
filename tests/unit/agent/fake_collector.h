// SPDX-License-Identifier: Apache-2.0
// A collector for tests: exchanges wire frames on a loopback socket and stores every message.
//
// Stored messages survive stop() and start(), as in a database; duplicates are dropped by
// (rank, incarnation, seq) and counted. Thread-safe.
#pragma once

#include <muster/wire/codec.h>

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace muster::agent {

class FakeCollector {
 public:
  struct Behaviour {
    std::uint32_t version{wire::kProtocolVersion};
    std::int64_t epoch{1};
    bool reads{true};
    bool acks{true};
    bool stores{true};          // otherwise loses messages, like a crash before the commit
    std::string refusal;        // unless empty, the Goodbye (retry = false) to every Hello
    bool acks_nonsense{false};  // acknowledges items that were never sent
  };

  // Messages of one (rank, incarnation).
  struct Received {
    std::map<std::uint64_t, wire::Message> by_seq;  // frames of a batch separately
    std::uint64_t duplicates{0};
    std::uint64_t forgotten{0};
    std::uint64_t hellos{0};
    std::uint64_t schemas{0};
    bool said_goodbye{false};
    wire::Hello last_hello;
    MetricSchema schema;
    wire::Heartbeat last_heartbeat;

    // The highest seq below which none is missing.
    [[nodiscard]] std::uint64_t contiguous() const;
    [[nodiscard]] std::vector<SampleFrame> frames() const;
    [[nodiscard]] std::vector<Event> events() const;
    [[nodiscard]] std::vector<CommandReport> reports() const;
  };

  using State = std::map<std::int32_t, Received>;  // by rank

  FakeCollector();
  ~FakeCollector();
  FakeCollector(const FakeCollector&) = delete;
  FakeCollector& operator=(const FakeCollector&) = delete;
  FakeCollector(FakeCollector&&) = delete;
  FakeCollector& operator=(FakeCollector&&) = delete;

  // Starts to listen; the port is the same after a restart.
  void start(Behaviour behaviour);
  // Drops every connection and stops listening.
  void stop();

  [[nodiscard]] std::string address() const;

  [[nodiscard]] std::string port() const { return std::to_string(port_); }

  void send(std::int32_t rank, const wire::Message& message);

  // Waits, at most 20 s, until `condition` holds for the received messages.
  [[nodiscard]] bool wait(const std::function<bool(const State&)>& condition);

  [[nodiscard]] State state() const;

 private:
  struct Client;

  void serve();
  void accept_one();
  bool read_from(Client& client);
  bool handle(Client& client, const wire::Message& message);
  bool greet(Client& client, const wire::Hello& hello);
  void store(Client& client, std::uint64_t seq, wire::Message message);
  static void transmit(Client& client, const wire::Message& message);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Behaviour behaviour_;
  State state_;
  std::vector<std::unique_ptr<Client>> clients_;
  int listener_{-1};
  int wake_read_{-1};
  int wake_write_{-1};
  std::uint16_t port_{0};
  std::thread thread_;
};

}  // namespace muster::agent
