// SPDX-License-Identifier: Apache-2.0
// The messages between agents, launchers, tools and the collector, as plain structs.
// codec.h turns them into frames; nothing outside wire/ sees Protobuf.
#pragma once

#include <muster/common/ids.h>
#include <muster/common/telemetry.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace muster::wire {

// Version of the protocol of this build, and the oldest one it accepts. Peers use the lower of
// their two versions; if that is below either side's minimum, the session ends with a Goodbye that
// names the side to upgrade.
inline constexpr std::uint32_t kProtocolVersion = 1;
inline constexpr std::uint32_t kProtocolVersionMin = 1;

// Either side sends a Heartbeat when it has sent nothing else for the interval, and closes the
// connection when it has received nothing for the timeout.
inline constexpr std::chrono::milliseconds kHeartbeatInterval{1'000};
inline constexpr std::chrono::milliseconds kIdleTimeout{10'000};

enum class PeerRole : std::uint8_t { kAgent = 1, kLauncher = 2, kOperator = 3 };

// First message of a client.
struct Hello {
  std::uint32_t version{kProtocolVersion};
  std::uint32_t version_min{kProtocolVersionMin};
  PeerRole role{PeerRole::kAgent};
  Identity identity;
  std::int32_t world_size{0};
  std::string token;  // The token of the run, or empty on loopback.
  std::uint64_t last_applied_command{0};
  std::int64_t known_epoch{0};  // Highest collector epoch this run has seen.

  friend bool operator==(const Hello&, const Hello&) = default;
};

// The collector's answer.
struct Welcome {
  std::uint32_t version{kProtocolVersion};
  std::int64_t collector_epoch{0};
  std::uint64_t acked_seq{
      0};  // Highest contiguous seq stored for this (run, gen, rank, incarnation).

  friend bool operator==(const Welcome&, const Welcome&) = default;
};

struct SchemaMessage {
  MetricSchema schema;

  friend bool operator==(const SchemaMessage&, const SchemaMessage&) = default;
};

// A batch of frames. Each frame has its own seq: first_seq, first_seq + 1, ...
struct SampleBatch {
  std::uint64_t first_seq{0};
  std::uint64_t schema_hash{0};
  std::vector<SampleFrame> frames;
};

// Events share the seq space of samples. A launcher sends seq 0: stored each time, answered by
// Ack{0} once it is committed.
struct EventMessage {
  std::uint64_t seq{0};
  Event event;

  friend bool operator==(const EventMessage&, const EventMessage&) = default;
};

// Counters of samples the agent had to drop, cumulative since process start, by class.
struct DropReport {
  std::uint64_t ring_full{0};
  std::uint64_t outbox_full{0};
  std::uint64_t spool_full{0};

  friend bool operator==(const DropReport&, const DropReport&) = default;
};

struct CommandReportMessage {
  std::uint64_t seq{0};
  CommandReport report;

  friend bool operator==(const CommandReportMessage&, const CommandReportMessage&) = default;
};

struct Heartbeat {
  std::int64_t step{-1};  // Last finished step.
  std::int64_t monotonic_ns{0};
  DropReport drops;

  friend bool operator==(const Heartbeat&, const Heartbeat&) = default;
};

// Cumulative; sent after the commit of the database transaction, never before.
struct Ack {
  std::uint64_t seq{0};

  friend bool operator==(const Ack&, const Ack&) = default;
};

struct CommandMessage {
  Command command;

  friend bool operator==(const CommandMessage&, const CommandMessage&) = default;
};

// An operator (or the launcher) asks for a command; the collector answers with its id.
struct CommandRequest {
  std::string run_id;
  CommandKind kind{CommandKind::kCheckpointNow};
  double argument{0.0};
  std::int64_t expires_steps{-1};  // After the collector's newest step; -1 never expires.
  std::string reason;
  std::string issuer;

  friend bool operator==(const CommandRequest&, const CommandRequest&) = default;
};

struct CommandAccepted {
  CommandId id;

  friend bool operator==(const CommandAccepted&, const CommandAccepted&) = default;
};

// The last message of either side, with the reason.
struct Goodbye {
  std::string reason;
  bool retry{true};  // Cleared if reconnecting cannot help (version, token).

  friend bool operator==(const Goodbye&, const Goodbye&) = default;
};

using Message = std::variant<
    Hello,
    Welcome,
    SchemaMessage,
    SampleBatch,
    EventMessage,
    CommandReportMessage,
    Heartbeat,
    Ack,
    CommandMessage,
    CommandRequest,
    CommandAccepted,
    Goodbye>;

}  // namespace muster::wire
