// SPDX-License-Identifier: Apache-2.0
// The training thread's side of telemetry: fills ring slots, keeps events that do not fit, and
// reads the command mailbox. Makes no system call, never waits and never fails.
//
// Invariants: (1) a sample that does not fit is dropped and counted. (2) an event or report that
// does not fit stays in `overflow_`, in order, until there is room.
#pragma once

#include "agent/src/metrics/catalog.h"
#include "agent/src/uplink/channel.h"

#include <muster/agent/agent.h>

#include <deque>
#include <memory>
#include <optional>
#include <string>

namespace muster::agent {

class Uplink;

class Telemetry {
 public:
  // If `uplink` is null, the rings are never emptied (for tests of this class).
  Telemetry(std::unique_ptr<Channel> channel, std::unique_ptr<Uplink> uplink);
  ~Telemetry();
  Telemetry(const Telemetry&) = delete;
  Telemetry& operator=(const Telemetry&) = delete;
  Telemetry(Telemetry&&) = delete;
  Telemetry& operator=(Telemetry&&) = delete;

  // Starts the I/O thread; detaches if that fails.
  void start();

  // The slot of the next finished step, or null if the sample must be dropped (counted here).
  [[nodiscard]] StepSample* claim();

  // Call it after `claim` returned a slot.
  void publish() { channel_->samples.publish(); }

  void emit(Note note);
  // Moves overflowed notes into the ring; called once per step.
  void flush_notes();

  [[nodiscard]] std::optional<Command> next_command();

  void finished(std::int64_t step, std::uint64_t last_applied_command);
  // Sets epoch and command from a checkpoint, before the first step.
  void restored(std::int64_t known_epoch, std::uint64_t last_applied_command);

  // Ends publishing, with one log line, after an internal fault on the training thread.
  void detach(const std::string& reason);

  [[nodiscard]] std::int64_t known_epoch() const { return channel_->known_epoch; }

 private:
  std::unique_ptr<Channel> channel_;
  std::deque<Note> overflow_;
  std::unique_ptr<Uplink> uplink_;  // last, so that its thread ends before the rings do
};

// `prototype`: of the slots of the ring. Null if telemetry is disabled or no collector is
// configured. kInvalidArgument if the collector's address is not "host:port". Telemetry::start
// starts the I/O thread.
[[nodiscard]] Expected<std::unique_ptr<Telemetry>> make_telemetry(
    const AgentOptions& options,
    MetricCatalog catalog,
    const StepSample& prototype,
    const Clock& clock);

}  // namespace muster::agent
