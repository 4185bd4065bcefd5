// SPDX-License-Identifier: Apache-2.0
// One agent's protocol with the collector, without the socket: messages to send, and the reaction
// to each answer.
//
// Sans-I/O and not thread-safe: the I/O thread feeds received bytes and takes bytes to send; time
// is an argument. Survives connections: `begin` starts the next one.
//
// Fencing: the agent leaves a collector whose epoch is older than the newest this run has seen; it
// may be stale and still running. A command may be older than the collector that delivers it (it is
// persisted across a restart), so its epoch is rejected only if it is newer than that of the
// collector that delivered it.
#pragma once

#include "agent/src/uplink/channel.h"
#include "agent/src/uplink/outbox.h"
#include "agent/src/uplink/uplink.h"

#include <muster/common/clock.h>
#include <muster/wire/codec.h>

#include <deque>
#include <string>
#include <vector>

namespace muster::agent {

class Session {
 public:
  // kReconnect: close and retry later. kDetach: a retry cannot help.
  enum class Action { kContinue, kReconnect, kDetach };

  Session(const UplinkOptions& options, Channel& channel, Outbox& outbox);

  // Starts a connection: the next bytes to send are the Hello.
  void begin(MonotonicTime now);

  // Handles received bytes. Must not be called again after a result other than kContinue.
  [[nodiscard]] Action receive(std::span<const std::byte> bytes, MonotonicTime now);

  // Checks the deadlines of the handshake and of acknowledgements.
  [[nodiscard]] Action check(MonotonicTime now);

  // Appends pending messages, up to about kWriteBytes.
  void write(std::vector<std::byte>& out, MonotonicTime now);

  // Appends the Goodbye.
  static void write_goodbye(std::vector<std::byte>& out);

  // Moves waiting commands to the training thread's mailbox while it has room.
  void deliver_commands();

  [[nodiscard]] bool is_open() const { return open_; }

  // Reason why `receive` or `check` returned kReconnect or kDetach.
  [[nodiscard]] const std::string& reason() const { return reason_; }

 private:
  static constexpr std::size_t kWriteBytes = std::size_t{256} << 10;

  [[nodiscard]] Action end(Action action, std::string reason);
  [[nodiscard]] Action handle(const wire::Message& message);
  [[nodiscard]] Action welcome(const wire::Welcome& welcome);
  void take_command(const Command& command);
  [[nodiscard]] wire::Hello hello() const;
  [[nodiscard]] wire::Heartbeat heartbeat(MonotonicTime now) const;

  const UplinkOptions& options_;
  Channel& channel_;
  Outbox& outbox_;
  wire::FrameReader reader_;
  bool hello_sent_{false};
  bool schema_sent_{false};
  bool open_{false};  // the Welcome was received
  std::int64_t epoch_{0};
  MonotonicTime begun_at_;
  MonotonicTime last_received_at_;
  MonotonicTime heartbeat_due_at_;
  std::uint64_t received_command_{0};
  std::deque<Command> undelivered_;
  std::string reason_;
};

}  // namespace muster::agent
