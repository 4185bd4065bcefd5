// SPDX-License-Identifier: Apache-2.0
#include "agent/src/runtime/step_reporter.h"

#include <muster/common/log.h>

#include <exception>
#include <string>
#include <utility>
#include <variant>

namespace muster::agent {
namespace {

// Adds the time until destruction to a counter.
class Meter {
 public:
  Meter(const Clock& clock, std::int64_t& ns) : clock_(clock), ns_(ns), begun_(clock.now()) {}

  ~Meter() { ns_ += (clock_.now() - begun_).count(); }

  Meter(const Meter&) = delete;
  Meter& operator=(const Meter&) = delete;
  Meter(Meter&&) = delete;
  Meter& operator=(Meter&&) = delete;

 private:
  const Clock& clock_;
  std::int64_t& ns_;
  MonotonicTime begun_;
};

}  // namespace

StepReporter::StepReporter(
    const Clock& clock,
    std::unique_ptr<Telemetry> telemetry,
    bool is_reporting_rank,
    std::vector<int> attention_ids)
    : clock_(clock),
      telemetry_(std::move(telemetry)),
      is_reporting_rank_(is_reporting_rank),
      attention_ids_(std::move(attention_ids)) {}

void StepReporter::begin_step(std::int64_t step) {
  telemetry_ns_ = 0;
  if (announced_) {
    return;
  }
  announced_ = true;
  if (telemetry_ != nullptr) {
    telemetry_->start();
  }
  if (is_reporting_rank_) {
    emit(started_event(step, resumed_generation_));
    if (schedule_change_) {
      emit(*std::move(schedule_change_));
    }
  }
}

void StepReporter::report_step(
    const StepOutcome& outcome,
    const PhaseStopwatch& stopwatch,
    const SharedState& state,
    std::uint64_t digest) {
  if (telemetry_ == nullptr) {
    return;
  }
  try {
    report_verdict(outcome, state, digest);
    publish(outcome, stopwatch, state.step - 1);
  } catch (const std::exception& fault) {
    telemetry_->detach(fault.what());
  }
}

void StepReporter::report_verdict(
    const StepOutcome& outcome, const SharedState& state, std::uint64_t digest) {
  const std::int64_t decided = state.step - 1;
  const Meter meter{clock_, telemetry_ns_};
  for (const AppliedCommand& command : outcome.verdict.commands) {
    CommandReport report;
    report.id = command.command.id;
    report.state = command.state;
    report.step = decided;
    report.parameter_digest = digest;
    report.reason = command.reason;
    emit(std::move(report));
  }
  if (is_reporting_rank_) {
    for (Event& event :
         events_.from_verdict(decided, outcome.verdict, outcome.lanes, state.qk_clip_threshold)) {
      emit(std::move(event));
    }
    report_modes(decided, outcome.modes);
  }
  telemetry_->flush_notes();
  telemetry_->finished(decided, state.last_applied_command);
}

// A switch is reported with the step that ran under the new mode, before its sample.
void StepReporter::report_modes(std::int64_t step, std::span<const AttentionMode> modes) {
  if (modes.empty()) {
    return;
  }
  for (std::size_t layer = 0; layer < reported_modes_.size(); ++layer) {
    if (!same_attention(reported_modes_[layer], modes[layer])) {
      emit(mode_event(step, attention_ids_[layer], reported_modes_[layer], modes[layer]));
    }
  }
  reported_modes_.assign(modes.begin(), modes.end());
}

void StepReporter::publish(
    const StepOutcome& outcome, const PhaseStopwatch& stopwatch, std::int64_t step) {
  const MonotonicTime now = clock_.now();
  if (StepSample* slot = telemetry_->claim()) {
    slot->step = step;
    slot->wall_unix_ns = unix_ns(clock_.wall_now());
    slot->monotonic_ns = now.time_since_epoch().count();
    slot->facts.copy_rank(outcome);
    if (is_reporting_rank_) {
      slot->facts.copy_job(outcome);
    }
    slot->facts.previous_learning_rate = previous_learning_rate_;
    slot->facts.step_time = stopwatch.elapsed(now);
    slot->facts.phases = stopwatch.times(now);
    telemetry_ns_ += (clock_.now() - now).count();
    slot->telemetry_seconds = static_cast<double>(telemetry_ns_) * 1e-9;
    telemetry_->publish();
  }
  previous_learning_rate_ = outcome.learning_rate;
  last_telemetry_ns_ = telemetry_ns_;
}

void StepReporter::report_outcome(const SaveOutcome& outcome, std::int64_t step) {
  const bool knows_the_cause = !outcome.committed && outcome.reason != kFailedElsewhere;
  if (knows_the_cause) {
    log_warning(
        "event=checkpoint_failed step=" + std::to_string(outcome.step) + " reason=\"" +
        outcome.reason + "\"");
  }
  if (is_reporting_rank_ || knows_the_cause) {
    emit(event_of(outcome, step));
  }
}

void StepReporter::report_end(std::int64_t step, Ending ending, const Status& saved) {
  if (is_reporting_rank_) {
    emit(ended_event(step, ending, saved));
  }
}

void StepReporter::emit(Note note) {
  if (telemetry_ == nullptr) {
    return;
  }
  if (auto* event = std::get_if<Event>(&note); event != nullptr && event->wall_unix_ns == 0) {
    event->wall_unix_ns = unix_ns(clock_.wall_now());
  }
  telemetry_->emit(std::move(note));
}

void StepReporter::resumed(
    std::int64_t generation,
    std::int64_t known_epoch,
    std::uint64_t last_applied_command,
    std::vector<AttentionMode> modes,
    std::optional<Event> schedule_change) {
  resumed_generation_ = generation;
  reported_modes_ = std::move(modes);
  schedule_change_ = std::move(schedule_change);
  if (telemetry_ != nullptr) {
    telemetry_->restored(known_epoch, last_applied_command);
  }
}

std::optional<Command> StepReporter::next_command() {
  return telemetry_ == nullptr ? std::nullopt : telemetry_->next_command();
}

std::int64_t StepReporter::known_epoch() const {
  return telemetry_ == nullptr ? 0 : telemetry_->known_epoch();
}

}  // namespace muster::agent
