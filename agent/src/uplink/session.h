// One agent's conversation with the collector, without the socket: what to say, what an answer
// means.
//
// Sans-I/O and not thread-safe: the I/O thread feeds received bytes and takes bytes to send; time
// comes in as an argument. Survives connections: `begin` starts the next one.
//
// Fencing: a collector whose epoch is older than the newest this run has seen is left; it may be a
// stale one that still runs somewhere. A command may well be older than the collector that delivers
// it (it is persisted across a restart), so a command's own epoch is refused only when it is newer
// than its bearer's.
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
  // kReconnect: close and try again later. kDetach: trying again cannot help.
  enum class Fate { kGoOn, kReconnect, kDetach };

  Session(const UplinkOptions& options, Channel& channel, Outbox& outbox);

  // A connection was made: the next bytes to send are the Hello.
  void begin(MonotonicTime now);

  // Received bytes. Call until the connection ends; not again after anything but kGoOn.
  [[nodiscard]] Fate receive(std::span<const std::byte> bytes, MonotonicTime now);

  // Deadlines: a handshake that does not end, an acknowledgement that does not come.
  [[nodiscard]] Fate check(MonotonicTime now);

  // Appends what is to be sent now, about kWriteBytes of it.
  void write(std::vector<std::byte>& out, MonotonicTime now);

  // Appends the last word.
  static void write_goodbye(std::vector<std::byte>& out);

  // Hands waiting commands to the training thread when its mailbox has room again.
  void deliver_commands();

  [[nodiscard]] bool is_open() const { return open_; }

  // Why `receive` or `check` did not go on.
  [[nodiscard]] const std::string& reason() const { return reason_; }

 private:
  static constexpr std::size_t kWriteBytes = std::size_t{256} << 10;

  [[nodiscard]] Fate end(Fate fate, std::string reason);
  [[nodiscard]] Fate handle(const wire::Message& message);
  [[nodiscard]] Fate welcome(const wire::Welcome& welcome);
  void take_command(const Command& command);
  [[nodiscard]] wire::Hello hello() const;
  [[nodiscard]] wire::Heartbeat heartbeat(MonotonicTime now) const;

  const UplinkOptions& options_;
  Channel& channel_;
  Outbox& outbox_;
  wire::FrameReader reader_;
  bool said_hello_{false};
  bool said_schema_{false};
  bool open_{false};  // Welcome received.
  std::int64_t epoch_{0};
  MonotonicTime begun_at_;
  MonotonicTime heard_at_;
  MonotonicTime heartbeat_due_at_;
  std::uint64_t received_command_{0};
  std::deque<Command> undelivered_;
  std::string reason_;
};

}  // namespace muster::agent
