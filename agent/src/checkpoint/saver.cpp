#include "agent/src/checkpoint/saver.h"

#include <utility>

namespace muster::agent {

Expected<std::unique_ptr<Saver>> Saver::create(const AgentOptions& options) {
  auto saver = std::make_unique<Saver>();
  if (options.checkpoint_root.empty()) {
    return saver;
  }
  checkpoint::WriterOptions writer;
  writer.root = options.checkpoint_root;
  writer.run_id = options.identity.run_id;
  writer.generation = options.identity.generation;
  writer.rank = options.identity.rank.value();
  writer.world_size = options.world_size;
  writer.incarnation = options.identity.incarnation;
  writer.keep_last = options.keep_last;
  MUSTER_ASSIGN_OR_RETURN(saver->writer_, checkpoint::Writer::create(std::move(writer)));
  return saver;
}

void Saver::fill_lanes(LocalLanes& lanes) {
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

void Saver::apply(
    const Verdict& verdict,
    std::int64_t step,
    const std::function<checkpoint::RankState()>& state) {
  if (writer_ == nullptr) {
    return;
  }
  resolve_commit();
  if (verdict.abandon_checkpoint != 0) {
    active_.reason = failed_sequence_ == active_.sequence ? failure() : kFailedElsewhere;
    writer_->abandon(verdict.abandon_checkpoint);
    last_result_ = aborted(
        "checkpoint of step " + std::to_string(active_.step) + " was abandoned: " + active_.reason);
    outcomes_.push_back(std::exchange(active_, {}));
  }
  if (verdict.commit_checkpoint != 0) {
    if (committing_.sequence != 0) {
      // The writer works in order: an older commit that is not durable by now has failed.
      committing_.reason = failure();
      outcomes_.push_back(std::exchange(committing_, {}));
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
    const Status begun = writer_->begin(verdict.begin_checkpoint, StepIndex{step}, state());
    if (!begun.ok()) {
      failed_sequence_ = verdict.begin_checkpoint;
    }
    active_.stall_ns = writer_->last_stall_ns();
    active_.snapshot_bytes = writer_->last_snapshot_bytes();
  }
}

std::optional<SaveOutcome> Saver::next_outcome() {
  if (writer_ != nullptr) {
    resolve_commit();
  }
  if (outcomes_.empty()) {
    return std::nullopt;
  }
  SaveOutcome outcome = std::move(outcomes_.front());
  outcomes_.erase(outcomes_.begin());
  return outcome;
}

Status Saver::wait(std::chrono::nanoseconds timeout) {
  if (writer_ == nullptr) {
    return {};
  }
  Status idle = writer_->wait(timeout);
  resolve_commit();
  if (idle.ok() && committing_.sequence != 0) {  // The writer is done with it, and it is not there.
    committing_.reason = failure();
    outcomes_.push_back(std::exchange(committing_, {}));
  }
  return idle;
}

Status Saver::last_result() const {
  return last_result_;
}

void Saver::resolve_commit() {
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
  outcomes_.push_back(std::exchange(committing_, {}));
}

std::string Saver::failure() const {
  const Status error = writer_->last_error();
  return error.ok() ? "the save did not begin" : error.to_string();
}

}  // namespace muster::agent
