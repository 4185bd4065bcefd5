// One step: lanes, verdict, update, checkpoint, sample.
#include "agent/src/checkpoint/rank_state.h"
#include "agent/src/runtime/runtime.h"

#include <muster/common/log.h>

#include <algorithm>
#include <cmath>
#include <limits>

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

void Runtime::begin_step() {
  stopwatch_.restart(parts_.clock.now());
  telemetry_ns_ = 0;
  if (!announced_) {
    announced_ = true;
    if (parts_.telemetry != nullptr) {
      parts_.telemetry->start();
    }
    if (speaks_for_the_job()) {
      emit(started_event(state_.step, resumed_from_));
      if (schedule_change_) {
        emit(*std::move(schedule_change_));
      }
    }
  }
  for (std::vector<float>& row : local_.max_logits) {
    std::fill(row.begin(), row.end(), -std::numeric_limits<float>::infinity());
  }
  for (std::vector<double>& row : local_.expert_counts) {
    std::fill(row.begin(), row.end(), 0.0);
  }
  for (MobaLanes& lanes : local_.moba) {
    lanes.clear();
  }
  std::fill(local_.ep.begin(), local_.ep.end(), EpLanes{});
  ep_times_.clear();
}

void Runtime::enter(Phase phase) {
  stopwatch_.enter(phase, parts_.clock.now());
}

void Runtime::leave() {
  stopwatch_.leave(parts_.clock.now());
}

Expected<Verdict> Runtime::end_step(
    double loss_sum, std::int64_t token_count, const TrainerState& trainer) {
  MUSTER_RETURN_IF_ERROR(misuse_);
  {
    const PhaseTimer timer = time(Phase::kReduce);
    MUSTER_RETURN_IF_ERROR(finish_gather());
    MUSTER_RETURN_IF_ERROR(parts_.optimizer.reduce_gradients(deadline()));
  }
  MUSTER_ASSIGN_OR_RETURN(Verdict verdict, agree(loss_sum, token_count));
  if (verdict.ending == Ending::kAbort) {
    return failed_precondition(verdict.reason);
  }
  MUSTER_RETURN_IF_ERROR(update(verdict));
  if (trainer.on_verdict) {
    trainer.on_verdict(verdict, reduced_);
  }
  apply_checkpoint(verdict, trainer);
  tell_save_outcomes();
  observe(verdict);
  return verdict;
}

Expected<Verdict> Runtime::agree(double loss_sum, std::int64_t token_count) {
  const PhaseTimer timer = time(Phase::kVerdict);
  drain_commands();
  fill_local_lanes(loss_sum, token_count);
  MUSTER_RETURN_IF_ERROR(reduce_lanes());
  Verdict verdict = decide(reduced_, pending_, decide_options_, state_);
  std::erase_if(pending_, [this](const Command& command) {
    return command.id.value() <= state_.last_applied_command;
  });
  return verdict;
}

void Runtime::drain_commands() {
  if (parts_.telemetry == nullptr) {
    return;
  }
  while (std::optional<Command> command = parts_.telemetry->next_command()) {
    const std::uint64_t id = command->id.value();
    if (id > std::max(armed_command_, state_.last_applied_command)) {
      armed_command_ = id;
      pending_.push_back(std::move(*command));
    }
  }
}

void Runtime::fill_local_lanes(double loss_sum, std::int64_t token_count) {
  optimizer::LocalStatistics statistics = parts_.optimizer.local_statistics();
  local_.squared_norm = std::move(statistics.squared_norm);
  local_.nonfinite_count = static_cast<double>(statistics.nonfinite_count);
  local_.loss_sum = loss_sum;
  local_.token_count = static_cast<double>(token_count);
  local_.local_loss = token_count > 0 ? loss_sum / static_cast<double>(token_count) : 0.0;
  const auto update = parts_.optimizer.update_statistics();
  local_.update.assign(update.begin(), update.end());
  local_.preempt = preempt_.load(std::memory_order_relaxed);
  local_.armed_command = std::max(armed_command_, state_.last_applied_command);
  local_.pending_digest =
      command_digest(pending_, state_.last_applied_command, local_.armed_command);
  const std::int64_t interval = parts_.options.digest_interval;
  digest_ = interval > 0 && state_.step % interval == 0 ? parts_.optimizer.replica_digest() : 0;
  local_.replica_digest = digest_;
  parts_.saver->fill_lanes(local_);
}

Status Runtime::reduce_lanes() {
  encode(layout_, local_, sum_, max_);
  MUSTER_RETURN_IF_ERROR(parts_.world.all_reduce(std::span{sum_}, comm::ReduceOp::kSum, deadline())
                             .context("the verdict of step " + std::to_string(state_.step)));
  MUSTER_RETURN_IF_ERROR(parts_.world.all_reduce(std::span{max_}, comm::ReduceOp::kMax, deadline())
                             .context("the verdict of step " + std::to_string(state_.step)));
  decode(layout_, sum_, max_, reduced_);
  return {};
}

Status Runtime::update(const Verdict& verdict) {
  optimizer::Optimizer& optimizer = parts_.optimizer;
  optimizer::StepDecision decision;
  decision.skip = verdict.skip;
  decision.gradient_scale = verdict.gradient_scale;
  decision.clip_factor = verdict.clip_factor;
  decision.group_clip_factors = verdict.group_clip_factors;
  decision.learning_rate =
      optimizer::learning_rate_at(optimizer.options().schedule, optimizer.applied_steps());
  learning_rate_ = decision.learning_rate;
  {
    const PhaseTimer timer = time(Phase::kOptimizer);
    const std::int64_t applied_before = optimizer.applied_steps();
    MUSTER_RETURN_IF_ERROR(optimizer.apply(decision, deadline())
                               .context("the update of step " + std::to_string(state_.step - 1)));
    update_applied_ = optimizer.applied_steps() != applied_before;
    MUSTER_RETURN_IF_ERROR(apply_qk_clip(verdict));
  }
  if (!verdict.skip) {  // After a skip every rank still has the parameters it had.
    const PhaseTimer timer = time(Phase::kGather);
    MUSTER_RETURN_IF_ERROR(gather(verdict));
  }
  const PhaseTimer timer = time(Phase::kOptimizer);
  optimizer.zero_gradients();
  return {};
}

Status Runtime::apply_qk_clip(const Verdict& verdict) {
  std::vector<optimizer::HeadScale> scales;
  for (std::size_t layer = 0; layer < verdict.head_gammas.size(); ++layer) {
    const auto of_layer =
        optimizer::head_scales(parts_.model.attention[layer], verdict.head_gammas[layer]);
    scales.insert(scales.end(), of_layer.begin(), of_layer.end());
  }
  return scales.empty() ? Status{} : parts_.optimizer.scale_heads(scales).context("QK-clip");
}

// With overlap the new parameters travel while the trainer goes on, unless somebody is about to
// look at all of them.
Status Runtime::gather(const Verdict& verdict) {
  if (!parts_.optimizer.options().overlap) {
    return parts_.optimizer.gather_parameters(deadline());
  }
  parts_.optimizer.begin_gather(deadline());
  gathering_ = true;
  const bool needed = verdict.begin_checkpoint != 0 || verdict.ending != Ending::kContinue;
  return needed ? finish_gather() : Status{};
}

Status Runtime::finish_gather() {
  if (!gathering_) {
    return {};
  }
  gathering_ = false;
  return parts_.optimizer.gather_parameters(deadline());
}

void Runtime::apply_checkpoint(const Verdict& verdict, const TrainerState& trainer) {
  const PhaseTimer timer = time(Phase::kCheckpoint);
  ending_ = verdict.ending;
  if (ending_ != Ending::kContinue && state_.checkpoint_wanted) {
    last_trainer_ = trainer;
  }
  parts_.saver->apply(verdict, state_.step, [&] { return collect(trainer); });
}

// Telemetry of the step. Whatever goes wrong in it, training goes on.
void Runtime::observe(const Verdict& verdict) {
  if (parts_.telemetry == nullptr) {
    return;
  }
  try {
    tell(verdict);
    publish(verdict);
  } catch (const std::exception& fault) {
    parts_.telemetry->detach(fault.what());
  }
}

void Runtime::tell(const Verdict& verdict) {
  const std::int64_t decided = state_.step - 1;
  const Meter meter{parts_.clock, telemetry_ns_};
  for (const AppliedCommand& command : verdict.commands) {
    CommandReport report;
    report.id = command.command.id;
    report.state = command.state;
    report.step = decided;
    report.parameter_digest = digest_;
    report.reason = command.reason;
    emit(std::move(report));
  }
  if (speaks_for_the_job()) {
    for (Event& event :
         events_.from_verdict(decided, verdict, reduced_, state_.qk_clip_threshold)) {
      emit(std::move(event));
    }
    tell_attention_modes(decided);
  }
  parts_.telemetry->flush_notes();
  parts_.telemetry->finished(decided, state_.last_applied_command);
}

void Runtime::tell_save_outcomes() {
  while (std::optional<SaveOutcome> outcome = parts_.saver->next_outcome()) {
    const bool knows_the_cause = !outcome->committed && outcome->reason != kFailedElsewhere;
    if (knows_the_cause) {
      log_warning(
          "event=checkpoint_failed step=" + std::to_string(outcome->step) + " reason=\"" +
          outcome->reason + "\"");
    }
    if (speaks_for_the_job() || knows_the_cause) {
      emit(event_of(*outcome, state_.step - 1));
    }
  }
}

void Runtime::publish(const Verdict& verdict) {
  const MonotonicTime now = parts_.clock.now();
  SampleFrame* slot = parts_.telemetry->claim();
  if (slot != nullptr) {
    slot->step = state_.step - 1;
    slot->wall_unix_ns = unix_ns(parts_.clock.wall_now());
    slot->monotonic_ns = now.time_since_epoch().count();
    StepFacts facts{reduced_, verdict};
    facts.learning_rate = learning_rate_;
    facts.previous_learning_rate = applied_learning_rate_;
    facts.local_loss = local_.token_count > 0.0 ? local_.loss_sum / local_.token_count
                                                : std::numeric_limits<double>::quiet_NaN();
    facts.update_applied = update_applied_;
    facts.step_time = stopwatch_.elapsed(now);
    facts.phases = stopwatch_.times(now);
    facts.modes = modes_;
    facts.ep = &ep_times_;
    parts_.catalog.fill(facts, slot->values);
    telemetry_ns_ += (parts_.clock.now() - now).count();
    slot->values.back() = static_cast<float>(static_cast<double>(telemetry_ns_) * 1e-9);
    parts_.telemetry->publish();
  }
  applied_learning_rate_ = learning_rate_;
  last_telemetry_ns_ = telemetry_ns_;
}

void Runtime::emit(Note note) {
  if (parts_.telemetry == nullptr) {
    return;
  }
  if (auto* event = std::get_if<Event>(&note); event != nullptr && event->wall_unix_ns == 0) {
    event->wall_unix_ns = unix_ns(parts_.clock.wall_now());
  }
  parts_.telemetry->emit(std::move(note));
}

void Runtime::report(Event event) {
  emit(std::move(event));
}

}  // namespace muster::agent
