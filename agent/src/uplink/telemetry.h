// The training thread's side of telemetry: fills ring slots, keeps events that do not fit, and
// reads the command mailbox. No system call, no wait, no error.
//
// Invariants: (1) a sample that does not fit is counted, never waited for. (2) an event or report
// that does not fit stays in `overflow_`, in order, until there is room.
#pragma once

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
  // `uplink` may be null: then nobody empties the rings (tests of this class alone).
  Telemetry(std::unique_ptr<Channel> channel, std::unique_ptr<Uplink> uplink);
  ~Telemetry();
  Telemetry(const Telemetry&) = delete;
  Telemetry& operator=(const Telemetry&) = delete;
  Telemetry(Telemetry&&) = delete;
  Telemetry& operator=(Telemetry&&) = delete;

  // Starts the I/O thread; without one for it, detaches.
  void start();

  // The slot of the next finished step, or null when it must be dropped (counted here).
  [[nodiscard]] SampleFrame* claim();

  // After `claim` gave a slot.
  void publish() { channel_->samples.publish(); }

  void emit(Note note);
  // Moves overflowed notes on; called once per step.
  void flush_notes();

  [[nodiscard]] std::optional<Command> next_command();

  void finished(std::int64_t step, std::uint64_t last_applied_command);
  // Epoch and command restored from a checkpoint, before the first step.
  void restored(std::int64_t known_epoch, std::uint64_t last_applied_command);

  // After a fault of ours on the training thread: nothing is published any more. One log line.
  void detach(const std::string& reason);

  [[nodiscard]] std::int64_t known_epoch() const { return channel_->known_epoch; }

 private:
  std::unique_ptr<Channel> channel_;
  std::deque<Note> overflow_;
  std::unique_ptr<Uplink> uplink_;  // Last: its thread ends before the rings do.
};

// Null when telemetry is off or there is no collector to talk to. kInvalidArgument when the
// collector's address is not "host:port". The I/O thread begins with Telemetry::start.
[[nodiscard]] Expected<std::unique_ptr<Telemetry>> make_telemetry(
    const AgentOptions& options, const MetricSchema& schema, const Clock& clock);

}  // namespace muster::agent
