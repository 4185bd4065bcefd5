// SPDX-License-Identifier: Apache-2.0
#include "agent/src/runtime/step_events.h"

#include <algorithm>
#include <string>
#include <utility>

namespace muster::agent {
namespace {

// Events are rare, and training leaves no cache warm for the code that checks for them: the code
// that makes them is kept apart from it (gnu::cold).
[[gnu::cold]] Event make(
    const char* kind, Severity severity, std::int64_t step, std::string reason) {
  Event event;
  event.kind = kind;
  event.severity = severity;
  event.step = step;
  event.reason = std::move(reason);
  return event;
}

[[gnu::cold]] Event command_event(std::int64_t step, const AppliedCommand& command) {
  const bool applied = command.state == CommandState::kApplied;
  Event event = make(
      applied ? event_kind::kCommandApplied : event_kind::kCommandRejected,
      applied ? Severity::kInfo : Severity::kWarning,
      step,
      applied ? command.command.reason : command.reason);
  event.inputs["command"] = static_cast<double>(command.command.id.value());
  event.inputs["argument"] = command.command.argument;
  event.labels["command"] = muster::to_string(command.command.kind);
  event.labels["state"] = muster::to_string(command.state);
  event.labels["issuer"] = command.command.issuer;
  return event;
}

[[gnu::cold]] Event skip_event(
    std::int64_t step, const Verdict& verdict, const ReducedLanes& lanes) {
  Event event = make(event_kind::kStepSkipped, Severity::kWarning, step, verdict.reason);
  event.inputs["nonfinite_count"] = lanes.nonfinite_count;
  event.inputs["nonfinite_loss"] = lanes.nonfinite_loss ? 1.0 : 0.0;
  event.inputs["nonfinite_logit"] = lanes.nonfinite_logit ? 1.0 : 0.0;
  event.inputs["tokens"] = lanes.token_count;
  double rows = 0.0;
  for (const MobaLanes& layer : lanes.moba) {
    rows += layer.nonfinite_rows;
  }
  if (rows > 0.0) {
    event.inputs["nonfinite_rows"] = rows;
  }
  return event;
}

[[gnu::cold]] Event qk_clip_event(
    std::int64_t step,
    const Verdict& verdict,
    const ReducedLanes& lanes,
    double threshold,
    std::int64_t clipped_steps) {
  double heads = 0.0;
  double gamma_min = 1.0;
  double logit_max = 0.0;
  for (std::size_t layer = 0; layer < verdict.head_gammas.size(); ++layer) {
    for (std::size_t head = 0; head < verdict.head_gammas[layer].size(); ++head) {
      const double gamma = verdict.head_gammas[layer][head];
      heads += gamma < 1.0 ? 1.0 : 0.0;
      gamma_min = std::min(gamma_min, gamma);
      logit_max = std::max(logit_max, lanes.max_logits[layer][head]);
    }
  }
  Event event = make(
      event_kind::kQkClip,
      Severity::kInfo,
      step,
      "the attention logits of " + std::to_string(static_cast<int>(heads)) +
          " heads exceeded the threshold");
  event.inputs = {
      {"heads", heads},
      {"gamma_min", gamma_min},
      {"logit_max", logit_max},
      {"threshold", threshold},
      {"clipped_steps", static_cast<double>(clipped_steps)}};
  return event;
}

[[gnu::cold]] Event clip_event(
    std::int64_t step, const Verdict& verdict, double factor, std::int64_t clipped_steps) {
  Event event = make(
      event_kind::kGradientClipped, Severity::kInfo, step, "the gradient norm exceeded its limit");
  event.inputs = {
      {"gradient_norm", verdict.gradient_norm},
      {"clip_factor", factor},
      {"clipped_steps", static_cast<double>(clipped_steps)}};
  return event;
}

[[gnu::cold]] Event spike_event(
    std::int64_t step, const Verdict& verdict, std::int64_t clipped_steps) {
  Event event = clip_event(step, verdict, verdict.clip_factor, clipped_steps);
  event.severity = Severity::kWarning;
  event.reason = verdict.reason;
  event.labels["cause"] = "zclip";
  return event;
}

[[gnu::cold]] Event divergence_event(std::int64_t step, const ReducedLanes& lanes) {
  Event event = make(
      event_kind::kDivergence,
      Severity::kError,
      step,
      "replicated parameters differ between ranks: restart from the last checkpoint");
  event.inputs["digest_min"] = static_cast<double>(lanes.replica_digest_min);
  event.inputs["digest_max"] = static_cast<double>(lanes.replica_digest_max);
  return event;
}

}  // namespace

const char* to_string(Ending ending) {
  switch (ending) {
    case Ending::kContinue:
      return "continue";
    case Ending::kFinished:
      return "finished";
    case Ending::kStopped:
      return "stopped";
    case Ending::kPreempted:
      return "preempted";
    case Ending::kAbort:
      return "aborted";
    case Ending::kFailed:
      return "failed";
  }
  return "unknown";
}

std::vector<Event> StepEvents::from_verdict(
    std::int64_t step, const Verdict& verdict, const ReducedLanes& lanes, double threshold) {
  std::vector<Event> events;
  for (const AppliedCommand& command : verdict.commands) {
    events.push_back(command_event(step, command));
  }
  if (verdict.skip) {
    events.push_back(skip_event(step, verdict, lanes));
  }
  if (!verdict.skip && qk_clips_.observe(step, !verdict.head_gammas.empty())) {
    events.push_back(qk_clip_event(step, verdict, lanes, threshold, qk_clips_.take_steps(step)));
  }
  if (verdict.diverged) {
    events.push_back(divergence_event(step, lanes));
  }
  add_clip(step, verdict, events);
  add_spike(step, verdict, events);
  return events;
}

bool StepEvents::Onset::observe(std::int64_t step, bool now) {
  steps += now ? 1 : 0;
  unreported = now && (unreported || !active);
  active = now;
  return unreported && step - last_step >= kClipEventSteps;
}

std::int64_t StepEvents::Onset::take_steps(std::int64_t step) {
  last_step = step;
  unreported = false;
  return std::exchange(steps, 0);
}

void StepEvents::add_clip(std::int64_t step, const Verdict& verdict, std::vector<Event>& events) {
  double factor = verdict.clip_factor;
  for (const double of_group : verdict.group_clip_factors) {
    factor = std::min(factor, of_group);
  }
  // A spike has a separate event.
  if (verdict.skip || !clips_.observe(step, factor < 1.0 && !verdict.gradient_spike)) {
    return;
  }
  events.push_back(clip_event(step, verdict, factor, clips_.take_steps(step)));
}

void StepEvents::add_spike(std::int64_t step, const Verdict& verdict, std::vector<Event>& events) {
  if (verdict.skip || !spikes_.observe(step, verdict.gradient_spike)) {
    return;
  }
  events.push_back(spike_event(step, verdict, spikes_.take_steps(step)));
}

Event started_event(std::int64_t step, std::optional<std::int64_t> resumed_generation) {
  if (!resumed_generation) {
    return make(event_kind::kRunStarted, Severity::kInfo, step, "fresh start");
  }
  Event event = make(
      event_kind::kRunResumed,
      Severity::kInfo,
      step,
      "resumed from the checkpoint of step " + std::to_string(step));
  event.inputs["from_generation"] = static_cast<double>(*resumed_generation);
  return event;
}

Event event_of(const SaveOutcome& outcome, std::int64_t step) {
  Event event = make(
      outcome.committed ? event_kind::kCheckpointCommitted : event_kind::kCheckpointFailed,
      outcome.committed ? Severity::kInfo : Severity::kError,
      step,
      outcome.committed ? "checkpoint of step " + std::to_string(outcome.step) + " is on disk"
                        : outcome.reason);
  event.inputs = {
      {"checkpoint_step", static_cast<double>(outcome.step)},
      {"sequence", static_cast<double>(outcome.sequence)},
      {"stall_seconds", static_cast<double>(outcome.stall_ns) * 1e-9},
      {"bytes", static_cast<double>(outcome.snapshot_bytes)}};
  event.labels["pinned"] = outcome.pinned ? "true" : "false";
  return event;
}

Event mode_event(std::int64_t step, int layer, const AttentionMode& from, const AttentionMode& to) {
  Event event = make(
      event_kind::kAttentionModeChanged,
      Severity::kInfo,
      step,
      "attention layer " + std::to_string(layer) + " attends by " + label_of(to) + " instead of " +
          label_of(from));
  event.labels = {{"layer", std::to_string(layer)}, {"from", label_of(from)}, {"to", label_of(to)}};
  return event;
}

Event schedule_event(std::int64_t step, const ScheduleChange& change) {
  Event event =
      make(event_kind::kAttentionScheduleChanged, Severity::kWarning, step, change.describe());
  event.labels = {{"from", change.before}, {"to", change.now}};
  event.inputs = {
      {"first_step", static_cast<double>(change.first.step)},
      {"first_layer", static_cast<double>(change.first.layer)}};
  return event;
}

Event ended_event(std::int64_t step, Ending ending, const Status& saved) {
  Event event = make(
      event_kind::kRunEnded,
      saved.ok() ? Severity::kInfo : Severity::kError,
      step,
      saved.ok() ? to_string(ending) : saved.to_string());
  event.labels["ending"] = to_string(ending);
  return event;
}

}  // namespace muster::agent
