// SPDX-License-Identifier: Apache-2.0
// One step: lanes, verdict, update, checkpoint, sample. Then the two ends of a run: restoring a
// checkpoint, and finishing with the last one on disk.
#include "agent/src/runtime/runtime.h"

#include "agent/src/checkpoint/agreement.h"
#include "agent/src/checkpoint/rank_state.h"

#include <muster/common/file.h>
#include <muster/common/log.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

namespace muster::agent {

namespace {

// For the launcher, which sees the code alone.
void leave_reason(const AgentOptions& options, const std::string& reason) {
  if (options.identity.rank != Rank{0} || options.checkpoint_root.empty() || reason.empty()) {
    return;
  }
  const Status written =
      write_file_durably(options.checkpoint_root / options.identity.run_id / "RANK_REASON", reason);
  if (!written.ok()) {
    log_warning("event=reason_not_written reason=\"" + written.to_string() + "\"");
  }
}

}  // namespace

Runtime::Runtime(Parts parts)
    : parts_(std::move(parts)),
      recorder_(parts_.model, parts_.layout),
      state_(parts_.state),
      sum_(parts_.layout.sum_size()),
      max_(parts_.layout.max_size()) {
  recorder_.lanes().generation = parts_.options.identity.generation.value();
  stopwatch_.restart(parts_.clock.now());
}

Runtime::~Runtime() {
  // The last flush may take its two seconds; a signal during them must not look like a failed rank.
  parts_.reporter->stop();
  forget_preemption_agent(*this);
}

Deadline Runtime::deadline() const {
  return Deadline::after(parts_.options.collective_timeout);
}

void Runtime::begin_step() {
  stopwatch_.restart(parts_.clock.now());
  parts_.reporter->begin_step(state_.step);
  recorder_.begin_step();
}

void Runtime::enter(Phase phase) {
  stopwatch_.enter(phase, parts_.clock.now());
}

void Runtime::leave() {
  stopwatch_.leave(parts_.clock.now());
}

Expected<Verdict> Runtime::end_step(
    double loss_sum, std::int64_t token_count, const TrainerState& trainer) {
  MUSTER_RETURN_IF_ERROR(recorder_.misuse());
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
  parts_.saves->report_outcomes(outcome_reporter());
  parts_.reporter->report_step(outcome_of(verdict), stopwatch_, state_, digest_);
  return verdict;
}

Expected<Verdict> Runtime::agree(double loss_sum, std::int64_t token_count) {
  const PhaseTimer timer = time(Phase::kVerdict);
  drain_commands();
  fill_local_lanes(loss_sum, token_count);
  MUSTER_RETURN_IF_ERROR(reduce_lanes());
  Verdict verdict = decide(reduced_, pending_, parts_.decide_options, state_);
  std::erase_if(pending_, [this](const Command& command) {
    return command.id.value() <= state_.last_applied_command;
  });
  return verdict;
}

void Runtime::drain_commands() {
  while (std::optional<Command> command = parts_.reporter->next_command()) {
    const std::uint64_t id = command->id.value();
    if (id > std::max(armed_command_, state_.last_applied_command)) {
      armed_command_ = id;
      pending_.push_back(std::move(*command));
    }
  }
}

void Runtime::fill_local_lanes(double loss_sum, std::int64_t token_count) {
  LocalLanes& local = recorder_.lanes();
  optimizer::LocalStatistics statistics = parts_.optimizer.local_statistics();
  local.squared_norm = std::move(statistics.squared_norm);
  local.nonfinite_count = static_cast<double>(statistics.nonfinite_count);
  local.loss_sum = loss_sum;
  local.token_count = static_cast<double>(token_count);
  local.local_loss = token_count > 0 ? loss_sum / static_cast<double>(token_count) : 0.0;
  const auto update = parts_.optimizer.update_statistics();
  local.update.assign(update.begin(), update.end());
  local.preempt = preempt_.load(std::memory_order_relaxed);
  local.armed_command = std::max(armed_command_, state_.last_applied_command);
  local.pending_digest = command_digest(pending_, state_.last_applied_command, local.armed_command);
  const std::int64_t interval = parts_.options.digest_interval;
  digest_ = interval > 0 && state_.step % interval == 0 ? parts_.optimizer.replica_digest() : 0;
  local.replica_digest = digest_;
  parts_.saves->fill_lanes(local);
}

Status Runtime::reduce_lanes() {
  encode(parts_.layout, recorder_.lanes(), sum_, max_);
  MUSTER_RETURN_IF_ERROR(parts_.world.all_reduce(std::span{sum_}, comm::ReduceOp::kSum, deadline())
                             .context("the verdict of step " + std::to_string(state_.step)));
  MUSTER_RETURN_IF_ERROR(parts_.world.all_reduce(std::span{max_}, comm::ReduceOp::kMax, deadline())
                             .context("the verdict of step " + std::to_string(state_.step)));
  decode(parts_.layout, sum_, max_, reduced_);
  return {};
}

Status Runtime::update(Verdict& verdict) {
  optimizer::Optimizer& optimizer = parts_.optimizer;
  const std::int64_t applied_before = optimizer.applied_steps();
  verdict.learning_rate = optimizer::learning_rate_at(optimizer.options().schedule, applied_before);
  {
    const PhaseTimer timer = time(Phase::kOptimizer);
    MUSTER_RETURN_IF_ERROR(optimizer.apply(verdict, deadline())
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

// With overlap the new parameters travel while the trainer continues, unless all of them are about
// to be read.
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
  if (exit_code(ending_) == kExitNeverRestart) {
    leave_reason(parts_.options, verdict.reason);
  }
  if (ending_ != Ending::kContinue && state_.checkpoint_wanted) {
    last_trainer_ = trainer;
  }
  parts_.saves->apply(verdict, state_.step, [&] { return collect(trainer); });
}

StepOutcome Runtime::outcome_of(const Verdict& verdict) {
  const LocalLanes& local = recorder_.lanes();
  StepOutcome outcome{reduced_, verdict, recorder_.modes(), recorder_.ep_times()};
  outcome.learning_rate = verdict.learning_rate;
  outcome.local_loss = local.token_count > 0.0 ? local.loss_sum / local.token_count
                                               : std::numeric_limits<double>::quiet_NaN();
  outcome.update_applied = update_applied_;
  return outcome;
}

SaveCoordinator::Report Runtime::outcome_reporter() {
  return [this](const SaveOutcome& outcome) {
    parts_.reporter->report_outcome(outcome, state_.step - 1);
  };
}

checkpoint::RankState Runtime::collect(const TrainerState& trainer) {
  const auto modes = recorder_.modes();
  return collect_state(
      parts_.optimizer,
      state_,
      {parts_.model.attention_schedule, {modes.begin(), modes.end()}},
      trainer,
      parts_.reporter->known_epoch());
}

void Runtime::report(Event event) {
  parts_.reporter->emit(std::move(event));
}

Status Runtime::restore(TrainerState& trainer) {
  if (parts_.options.resume_from.empty()) {
    return {};
  }
  const std::string what = "resuming from " + parts_.options.resume_from.string();
  MUSTER_RETURN_IF_ERROR(agree_on_success(parts_.world, restore_rank(trainer), what, deadline()));
  const auto step = static_cast<double>(state_.step);
  std::array<double, 2> range{step, -step};
  MUSTER_RETURN_IF_ERROR(
      parts_.world.all_reduce(std::span<double>{range}, comm::ReduceOp::kMax, deadline())
          .context(what));
  if (range[0] != -range[1]) {
    return failed_precondition(what, ": ranks were given checkpoints of different steps");
  }
  return parts_.optimizer.gather_parameters(deadline()).context(what);
}

Status Runtime::restore_rank(TrainerState& trainer) {
  const Identity& identity = parts_.options.identity;
  MUSTER_ASSIGN_OR_RETURN(const auto pieces, checkpoint::Pieces::open(parts_.options.resume_from));
  if (pieces->generation() > identity.generation) {
    return failed_precondition(
        "the checkpoint is of generation ",
        pieces->generation().value(),
        ", this launch is generation ",
        identity.generation.value(),
        ": a newer launch owns this run");
  }
  const std::int64_t step = pieces->step().value();
  MUSTER_ASSIGN_OR_RETURN(
      AttentionState attention,
      read_attention(pieces->values(identity.rank.value() % pieces->world_size())));
  MUSTER_ASSIGN_OR_RETURN(const auto change, check_attention_change(attention, step));
  MUSTER_ASSIGN_OR_RETURN(
      const RestoredState restored,
      distribute_state(
          *pieces, identity.rank.value(), parts_.options.world_size, parts_.optimizer, trainer));
  MUSTER_RETURN_IF_ERROR(restore_shared_state(restored.shared));
  const std::int64_t total = parts_.options.total_steps;
  ending_ = total > 0 && state_.step >= total ? Ending::kFinished : Ending::kContinue;
  attention.modes.resize(parts_.layout.heads.size());
  parts_.reporter->resumed(
      pieces->generation().value(),
      restored.known_epoch,
      state_.last_applied_command,
      std::move(attention.modes),
      change ? std::optional{schedule_event(step, *change)} : std::nullopt);
  return {};
}

// A model without a schedule has full attention. Only steps from `step` on are compared: schedules
// may differ in steps that have already run.
Expected<std::optional<ScheduleChange>> Runtime::check_attention_change(
    const AttentionState& saved, std::int64_t step) const {
  auto change = schedule_change(
      saved.schedule,
      parts_.model.attention_schedule,
      static_cast<std::int64_t>(parts_.layout.heads.size()),
      step);
  if (change && !parts_.options.allow_attention_change) {
    return failed_precondition(
        change->describe(),
        ": start with the schedule it was saved with, or set MUSTER_ALLOW_ATTENTION_CHANGE=1 "
        "(AgentOptions::allow_attention_change) to continue under the new one");
  }
  return change;
}

// The shared history of a checkpoint under this launch's settings.
Status Runtime::restore_shared_state(const SharedState& restored) {
  const DecideOptions& options = parts_.decide_options;
  if (restored.qk_clip_threshold > 0.0 && !options.qk_clip_obstacle.empty()) {
    return failed_precondition(
        "the checkpoint was saved with a QK-clip threshold of ",
        restored.qk_clip_threshold,
        ", but: ",
        options.qk_clip_obstacle);
  }
  const optimizer::GuardState fresh = state_.guard;
  state_ = restored;
  // The parameters' dtype may have changed: a scale that was never used, or that is no longer
  // needed, starts afresh.
  const bool saved_with_fp16 = restored.guard.hysteresis_left != 0 ||
                               restored.guard.clean_steps != 0 || restored.guard.loss_scale != 1.0;
  if (!options.loss_scale || !saved_with_fp16) {
    state_.guard.loss_scale = fresh.loss_scale;
    state_.guard.clean_steps = fresh.clean_steps;
    state_.guard.hysteresis_left = fresh.hysteresis_left;
  }
  return {};
}

Status Runtime::finish() {
  const Deadline limit = Deadline::after(parts_.options.finish_timeout);
  Status saved = parts_.saves->finish(
      state_, [this] { return collect(last_trainer_); }, outcome_reporter(), limit);
  parts_.reporter->report_end(state_.step - 1, ending_, saved);
  return saved;
}

}  // namespace muster::agent
