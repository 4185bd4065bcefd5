// SPDX-License-Identifier: Apache-2.0
#include "agent/src/checkpoint/save_coordinator.h"

#include "agent/src/checkpoint/agreement.h"

#include <algorithm>
#include <array>
#include <thread>
#include <utility>

namespace muster::agent {

Expected<std::unique_ptr<SaveCoordinator>> SaveCoordinator::create(
    const AgentOptions& options, comm::Communicator& world) {
  auto saves = std::make_unique<SaveCoordinator>(options, world);
  if (options.checkpoint_root.empty()) {
    return saves;
  }
  checkpoint::WriterOptions writer;
  writer.root = options.checkpoint_root;
  writer.identity = options.identity;
  writer.world_size = options.world_size;
  writer.keep_last = options.keep_last;
  MUSTER_ASSIGN_OR_RETURN(saves->writer_, checkpoint::Writer::create(std::move(writer)));
  return saves;
}

SaveCoordinator::SaveCoordinator(const AgentOptions& options, comm::Communicator& world)
    : world_(world),
      generation_(options.identity.generation.value()),
      collective_timeout_(options.collective_timeout) {}

void SaveCoordinator::fill_lanes(LocalLanes& lanes) {
  if (writer_ == nullptr) {
    return;
  }
  if (active_.sequence != 0 && writer_->poll() == checkpoint::SaveState::kFailed &&
      writer_->active_sequence() == active_.sequence) {
    failed_sequence_ = active_.sequence;
  }
  lanes.prepared_checkpoint = writer_->prepared_sequence();
  lanes.failed_checkpoint = failed_sequence_;
}

void SaveCoordinator::apply(const Verdict& verdict, std::int64_t step, const Collect& collect) {
  if (writer_ == nullptr) {
    return;
  }
  resolve_commit();
  if (verdict.abandon_checkpoint != 0) {
    active_.reason = failed_sequence_ == active_.sequence ? failure() : kFailedElsewhere;
    writer_->abandon(verdict.abandon_checkpoint);
    last_result_ = aborted("checkpoint of step ", active_.step, " was abandoned: ", active_.reason);
    close(active_);
  }
  if (verdict.commit_checkpoint != 0) {
    if (committing_.sequence != 0) {
      // The writer works in order: an older commit that is not durable by now has failed.
      committing_.reason = failure();
      close(committing_);
    }
    active_.pinned = verdict.commit_pinned;
    writer_->commit(verdict.commit_checkpoint, verdict.commit_pinned);
    committing_ = std::exchange(active_, {});
  }
  if (verdict.begin_checkpoint != 0) {
    active_ = {};
    active_.sequence = verdict.begin_checkpoint;
    active_.step = step;
    last_result_ = failed_precondition("the last checkpoint was never resolved");
    const Status begun = writer_->begin(verdict.begin_checkpoint, StepIndex{step}, collect());
    if (!begun.ok()) {
      failed_sequence_ = verdict.begin_checkpoint;
    }
    active_.stall_ns = writer_->last_stall_ns();
    active_.snapshot_bytes = writer_->last_snapshot_bytes();
  }
}

void SaveCoordinator::report_outcomes(const Report& report) {
  if (writer_ != nullptr) {
    resolve_commit();
  }
  for (const SaveOutcome& outcome : std::exchange(outcomes_, {})) {
    report(outcome);
  }
}

Status SaveCoordinator::finish(
    SharedState& state, const Collect& collect, const Report& report, Deadline limit) {
  MUSTER_RETURN_IF_ERROR(resolve_last(state, collect, report, limit));
  Status mine = wait(limit.remaining());
  report_outcomes(report);
  mine = mine.ok() ? last_result_ : mine;
  // Only rank 0 has a commit to wait for; the other ranks wait for it as long as it may take.
  return agree_on_success(
      world_,
      mine,
      "the last checkpoint",
      Deadline::after(limit.remaining()).extended(collective_timeout_));
}

Status SaveCoordinator::resolve_last(
    SharedState& state, const Collect& collect, const Report& report, Deadline limit) {
  // Each rank polls its own disk, so a round may find nothing new; the pause grows to a tick that
  // is short beside the fsync of a checkpoint. Not part of any step.
  std::chrono::milliseconds pause{1};
  while (state.checkpoint_in_flight != 0 || state.checkpoint_wanted) {
    MUSTER_ASSIGN_OR_RETURN(const Verdict verdict, resolve_round(state, limit.expired()));
    apply(verdict, state.step, collect);
    report_outcomes(report);
    const bool changed = verdict.commit_checkpoint != 0 || verdict.abandon_checkpoint != 0 ||
                         verdict.begin_checkpoint != 0;
    if (!changed) {
      std::this_thread::sleep_for(pause);
      pause = std::min(pause * 2, std::chrono::milliseconds{20});
    }
  }
  return {};
}

// One reduction of the checkpoint lanes alone, and the checkpoint part of the verdict.
Expected<Verdict> SaveCoordinator::resolve_round(SharedState& state, bool expired) {
  LocalLanes local;
  fill_lanes(local);
  const auto generation = static_cast<double>(generation_);
  std::array<double, 5> lanes{
      generation,
      -generation,
      -static_cast<double>(local.prepared_checkpoint),
      static_cast<double>(local.failed_checkpoint),
      expired ? 1.0 : 0.0};
  MUSTER_RETURN_IF_ERROR(
      world_
          .all_reduce(
              std::span<double>{lanes}, comm::ReduceOp::kMax, Deadline::after(collective_timeout_))
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
  Verdict verdict = resolve_checkpoint(reduced, state);
  if (verdict.ending == Ending::kAbort) {
    return failed_precondition(verdict.reason);
  }
  return verdict;
}

Status SaveCoordinator::wait(std::chrono::nanoseconds timeout) {
  if (writer_ == nullptr) {
    return {};
  }
  Status idle = writer_->wait(timeout);
  resolve_commit();
  if (idle.ok() && committing_.sequence != 0) {  // the writer is idle and the checkpoint is missing
    committing_.reason = failure();
    close(committing_);
  }
  return idle;
}

void SaveCoordinator::resolve_commit() {
  if (committing_.sequence == 0) {
    return;
  }
  if (writer_->committed_sequence() >= committing_.sequence) {
    committing_.committed = true;
    last_result_ = active_.sequence == 0 ? Status{} : last_result_;
  } else if (
      writer_->poll() == checkpoint::SaveState::kFailed &&
      writer_->active_sequence() == committing_.sequence) {
    committing_.reason = failure();
    last_result_ = writer_->last_error();
  } else {
    return;
  }
  close(committing_);
}

void SaveCoordinator::close(SaveOutcome& outcome) {
  outcomes_.push_back(std::exchange(outcome, {}));
}

std::string SaveCoordinator::failure() const {
  const Status error = writer_->last_error();
  return error.ok() ? "the save did not begin" : error.to_string();
}

}  // namespace muster::agent
