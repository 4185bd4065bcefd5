// SPDX-License-Identifier: Apache-2.0
// Messages from the I/O thread to the writer thread, and back.
#pragma once

#include <muster/common/expected.h>
#include <muster/common/ids.h>
#include <muster/common/telemetry.h>
#include <muster/detect/detector.h>
#include <muster/store/store.h>
#include <muster/wire/messages.h>

#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <string>
#include <variant>
#include <vector>

namespace muster::collector {

// One admitted connection. Immutable, shared by both threads.
struct Peer {
  std::uint64_t session_id{0};
  wire::Hello hello;  // Its run id is the name of the line.
  store::RunLine line{};
};

struct SessionOpened {};

struct SessionClosed {
  bool superseded{false};  // The same process has come back on another connection.
};

// A finding of the I/O side (a lost rank).
struct FindingRaised {
  std::string run_id;
  Generation generation;
  detect::Finding finding;
};

// Collector::issue: answered through the promise once it is committed.
struct IssueRequest {
  wire::CommandRequest request;
  std::promise<Expected<CommandId>> promise;
};

using Work = std::variant<
    SessionOpened,
    SessionClosed,
    wire::SchemaMessage,
    wire::SampleBatch,
    wire::EventMessage,
    wire::CommandReportMessage,
    wire::Heartbeat,
    wire::CommandRequest,
    FindingRaised,
    IssueRequest>;

struct Task {
  std::shared_ptr<const Peer> peer;  // Null for FindingRaised and IssueRequest.
  Work work;
  std::size_t bytes{0};  // Roughly what it holds in memory.
};

// One message for one session.
struct Reply {
  std::uint64_t session_id{0};
  wire::Message message;
};

// One command for every agent of a generation.
struct Broadcast {
  std::string run_id;
  Generation generation;
  Command command;
};

using Answer = std::variant<Reply, Broadcast>;

// The writer's way back. Called on the writer thread, after the commit that the answers belong to.
class AnswerSink {
 public:
  AnswerSink() = default;
  AnswerSink(const AnswerSink&) = delete;
  AnswerSink& operator=(const AnswerSink&) = delete;
  AnswerSink(AnswerSink&&) = delete;
  AnswerSink& operator=(AnswerSink&&) = delete;
  virtual ~AnswerSink() = default;

  // In order; a Goodbye ends its session.
  virtual void deliver(std::vector<Answer> answers) = 0;

  // The store lost what was not committed: every session must start over, unacked.
  virtual void restart_sessions(std::string reason) = 0;

  // The queue was full and has room again.
  virtual void queue_has_room() = 0;
};

}  // namespace muster::collector
