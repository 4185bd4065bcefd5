// The two ends of a run: taking a checkpoint back, and leaving with the last one on disk.
#include "agent/src/checkpoint/rank_state.h"
#include "agent/src/runtime/runtime.h"

#include <array>
#include <thread>

namespace muster::agent {

// All ranks learn whether every rank succeeded, so that none waits for one that gave up.
Status Runtime::agree_on(const Status& mine, const std::string& what, Deadline limit) {
  std::array<double, 1> failed{mine.ok() ? 0.0 : 1.0};
  const Status told =
      parts_.world.all_reduce(std::span<double>{failed}, comm::ReduceOp::kMax, limit);
  if (!mine.ok()) {
    return mine.context(what);
  }
  MUSTER_RETURN_IF_ERROR(told.context(what));
  return failed[0] > 0.0 ? aborted(what + ": it failed on another rank, which says why") : Status{};
}

Status Runtime::restore(TrainerState& trainer) {
  if (parts_.options.resume_from.empty()) {
    return {};
  }
  const std::string what = "resuming from " + parts_.options.resume_from.string();
  MUSTER_RETURN_IF_ERROR(agree_on(restore_here(trainer), what, deadline()));
  const auto step = static_cast<double>(state_.step);
  std::array<double, 2> range{step, -step};
  MUSTER_RETURN_IF_ERROR(
      parts_.world.all_reduce(std::span<double>{range}, comm::ReduceOp::kMax, deadline())
          .context(what));
  if (range[0] != -range[1]) {
    return failed_precondition(what + ": ranks were given checkpoints of different steps");
  }
  return parts_.optimizer.gather_parameters(deadline()).context(what);
}

Status Runtime::restore_here(TrainerState& trainer) {
  const Identity& identity = parts_.options.identity;
  MUSTER_ASSIGN_OR_RETURN(const auto pieces, checkpoint::Pieces::open(parts_.options.resume_from));
  if (pieces->generation() > identity.generation) {
    return failed_precondition(
        "the checkpoint is of generation " + std::to_string(pieces->generation().value()) +
        ", this launch is generation " + std::to_string(identity.generation.value()) +
        ": a newer launch owns this run");
  }
  MUSTER_RETURN_IF_ERROR(adopt_attention(
      pieces->values(identity.rank.value() % pieces->world_size()), pieces->step().value()));
  MUSTER_ASSIGN_OR_RETURN(
      const RestoredState restored,
      distribute_state(
          *pieces, identity.rank.value(), parts_.options.world_size, parts_.optimizer, trainer));
  MUSTER_RETURN_IF_ERROR(adopt(restored.shared));
  resumed_from_ = pieces->generation().value();
  const std::int64_t total = parts_.options.total_steps;
  ending_ = total > 0 && state_.step >= total ? Ending::kFinished : Ending::kContinue;
  if (parts_.telemetry != nullptr) {
    parts_.telemetry->restored(restored.known_epoch, state_.last_applied_command);
  }
  return {};
}

checkpoint::RankState Runtime::collect(const TrainerState& trainer) {
  const std::int64_t epoch = parts_.telemetry == nullptr ? 0 : parts_.telemetry->known_epoch();
  return collect_state(
      parts_.optimizer, state_, {parts_.model.attention_schedule, modes_}, trainer, epoch);
}

// A model without a schedule has full attention. Compared from the step that comes next: what the
// schedules say of steps that have run is past.
Status Runtime::adopt_attention(const TextValues& values, std::int64_t step) {
  MUSTER_ASSIGN_OR_RETURN(AttentionState saved, read_attention(values));
  const std::size_t layers = layout_.heads.size();
  const auto change = schedule_change(
      saved.schedule, parts_.model.attention_schedule, static_cast<std::int64_t>(layers), step);
  if (change && !parts_.options.allow_attention_change) {
    return failed_precondition(
        change->describe() +
        ": start with the schedule it was saved with, or set MUSTER_ALLOW_ATTENTION_CHANGE=1 "
        "(AgentOptions::allow_attention_change) to go on under this one");
  }
  if (change) {
    schedule_change_ = schedule_event(step, *change);
  }
  saved.modes.resize(layers);
  told_modes_ = std::move(saved.modes);
  return {};
}

// The shared history of a checkpoint under this launch's settings.
Status Runtime::adopt(const SharedState& restored) {
  if (restored.qk_clip_threshold > 0.0 && !decide_options_.qk_clip_obstacle.empty()) {
    return failed_precondition(
        "the checkpoint was saved with a QK-clip threshold of " +
        std::to_string(restored.qk_clip_threshold) + ", but: " + decide_options_.qk_clip_obstacle);
  }
  const optimizer::GuardState fresh = state_.guard;
  state_ = restored;
  // The parameters' dtype may have changed: a scale that was never used, or is of no use any more,
  // starts afresh.
  const bool saved_with_fp16 = restored.guard.hysteresis_left != 0 ||
                               restored.guard.clean_steps != 0 || restored.guard.loss_scale != 1.0;
  if (!decide_options_.loss_scale || !saved_with_fp16) {
    state_.guard.loss_scale = fresh.loss_scale;
    state_.guard.clean_steps = fresh.clean_steps;
    state_.guard.hysteresis_left = fresh.hysteresis_left;
  }
  return {};
}

Status Runtime::finish() {
  const Deadline limit = Deadline::after(parts_.options.finish_timeout);
  Status saved = resolve_last_checkpoint(limit);
  if (saved.ok()) {
    Status mine = parts_.saver->wait(limit.remaining());
    tell_save_outcomes();
    mine = mine.ok() ? parts_.saver->last_result() : mine;
    // Rank 0 alone has the commit to wait for; the others stay as long as it may.
    saved = agree_on(
        mine,
        "the last checkpoint",
        Deadline::after(limit.remaining() + parts_.options.collective_timeout));
  }
  if (speaks_for_the_job()) {
    emit(ended_event(state_.step - 1, ending_, saved));
  }
  return saved;
}

Status Runtime::resolve_last_checkpoint(Deadline limit) {
  // Ranks poll their own disks, so a round may find nothing new; the pause grows to a tick that a
  // checkpoint's fsync dwarfs. Not part of any step.
  std::chrono::milliseconds pause{1};
  while (state_.checkpoint_in_flight != 0 || state_.checkpoint_wanted) {
    MUSTER_ASSIGN_OR_RETURN(const bool changed, resolve_once(limit.expired()));
    if (!changed) {
      std::this_thread::sleep_for(pause);
      pause = std::min(pause * 2, std::chrono::milliseconds{20});
    }
  }
  return {};
}

// True when a checkpoint was committed, abandoned or begun in this round.
Expected<bool> Runtime::resolve_once(bool expired) {
  parts_.saver->fill_lanes(local_);
  const auto generation = static_cast<double>(local_.generation);
  std::array<double, 5> lanes{
      generation,
      -generation,
      -static_cast<double>(local_.prepared_checkpoint),
      static_cast<double>(local_.failed_checkpoint),
      expired ? 1.0 : 0.0};
  MUSTER_RETURN_IF_ERROR(
      parts_.world.all_reduce(std::span<double>{lanes}, comm::ReduceOp::kMax, deadline())
          .context("waiting for the last checkpoint"));
  if (lanes[4] > 0.0) {
    return deadline_exceeded(
        "the last checkpoint was not written within finish_timeout: the disk is too slow or stuck");
  }
  ReducedLanes reduced;
  reduced.generation_max = static_cast<std::int64_t>(lanes[0]);
  reduced.generation_min = static_cast<std::int64_t>(-lanes[1]);
  reduced.prepared_checkpoint_min = static_cast<std::int64_t>(-lanes[2]);
  reduced.failed_checkpoint_max = static_cast<std::int64_t>(lanes[3]);
  const Verdict verdict = resolve_checkpoint(reduced, state_);
  if (verdict.ending == Ending::kAbort) {
    return failed_precondition(verdict.reason);
  }
  parts_.saver->apply(verdict, state_.step, [this] { return collect(last_trainer_); });
  tell_save_outcomes();
  return verdict.commit_checkpoint + verdict.abandon_checkpoint + verdict.begin_checkpoint != 0;
}

}  // namespace muster::agent
