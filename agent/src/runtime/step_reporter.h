// SPDX-License-Identifier: Apache-2.0
// Telemetry of the step loop: events, command reports and the sample of each step.
//
// The training thread owns it. A fault in it detaches telemetry and never reaches training. Without
// Telemetry every call does nothing.
#pragma once

#include "agent/src/checkpoint/save_coordinator.h"
#include "agent/src/metrics/step_facts.h"
#include "agent/src/runtime/phase_stopwatch.h"
#include "agent/src/runtime/step_events.h"
#include "agent/src/uplink/telemetry.h"

#include <muster/agent/agent.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace muster::agent {

class StepReporter {
 public:
  // `telemetry` may be null. `is_reporting_rank`: this rank reports what concerns the whole job.
  // `clock` must outlive the reporter.
  StepReporter(
      const Clock& clock,
      std::unique_ptr<Telemetry> telemetry,
      bool is_reporting_rank,
      std::vector<int> attention_ids);

  // The first call starts the I/O thread and reports the start of the run.
  void begin_step(std::int64_t step);

  // The events and the sample of step `state.step - 1`. `digest`: of the parameters, 0 if not
  // computed.
  void report_step(
      const StepOutcome& outcome,
      const PhaseStopwatch& stopwatch,
      const SharedState& state,
      std::uint64_t digest);

  // `step`: the last step that was decided.
  void report_outcome(const SaveOutcome& outcome, std::int64_t step);
  void report_end(std::int64_t step, Ending ending, const Status& saved);

  void emit(Note note);

  // Before the first step of a resumed run. `modes`: how the layers attended in its last step.
  void resumed(
      std::int64_t generation,
      std::int64_t known_epoch,
      std::uint64_t last_applied_command,
      std::vector<AttentionMode> modes,
      std::optional<Event> schedule_change);

  [[nodiscard]] std::optional<Command> next_command();

  [[nodiscard]] std::int64_t known_epoch() const;

  // Nanoseconds that telemetry took on the training thread in the last step.
  [[nodiscard]] std::int64_t last_telemetry_ns() const { return last_telemetry_ns_; }

  // Flushes and ends the I/O thread; may take two seconds.
  void stop() { telemetry_.reset(); }

 private:
  void report_verdict(const StepOutcome& outcome, const SharedState& state, std::uint64_t digest);
  void report_modes(std::int64_t step, std::span<const AttentionMode> modes);
  void publish(const StepOutcome& outcome, const PhaseStopwatch& stopwatch, std::int64_t step);

  const Clock& clock_;
  std::unique_ptr<Telemetry> telemetry_;
  const bool is_reporting_rank_;
  const std::vector<int> attention_ids_;  // [attention layers] the number that metrics call each by
  StepEvents events_;
  // [attention layers] modes of the last step that was reported; empty before the first.
  std::vector<AttentionMode> reported_modes_;
  bool announced_{false};                 // the start of the run was reported
  std::optional<Event> schedule_change_;  // pending until the first step
  std::optional<std::int64_t> resumed_generation_;
  double previous_learning_rate_{0};  // of the update whose statistics are in this step's lanes
  std::int64_t telemetry_ns_{0};
  std::int64_t last_telemetry_ns_{0};
};

}  // namespace muster::agent
