// SPDX-License-Identifier: Apache-2.0
#include "collector/src/writer.h"

#include <muster/common/log.h>

#include <string>
#include <utility>

namespace muster::collector {

namespace {

constexpr std::chrono::seconds kCompactInterval{2};

}  // namespace

Writer::Writer(  // NOLINT(readability-function-size): its collaborators, each by name
    std::unique_ptr<store::Store> store,
    const Policy& policy,
    const Clock& clock,
    Metrics& metrics,
    HistoryReader read_history,
    TaskQueue& queue,
    AnswerSink& sink,
    const ServiceOptions& options)
    : store_(std::move(store)),
      clock_(clock),
      metrics_(metrics),
      queue_(queue),
      sink_(sink),
      options_(options),
      ingest_(*store_, policy, clock, metrics, std::move(read_history)) {
  metrics_.epoch = store_->epoch();
}

Writer::~Writer() {
  stop();
}

void Writer::start() {
  thread_ = std::thread{[this] { run(); }};
}

void Writer::stop() {
  queue_.close();
  if (thread_.joinable()) {
    thread_.join();
  }
}

void Writer::run() {
  for (bool finished = false; !finished;) {
    TaskQueue::Popped popped = queue_.pop(next_deadline(), clock_);
    finished = popped.finished;
    if (popped.was_refusing) {
      sink_.queue_has_room();
    }
    if (popped.task.has_value()) {
      handle(*popped.task);
    }
    if (commit_due(finished)) {
      commit();
    }
    const bool between_transactions = !uncommitted_since_.has_value();
    if (between_transactions && clock_.now() >= compact_at_) {
      compact();
    }
  }
}

MonotonicTime Writer::next_deadline() const {
  return uncommitted_since_.has_value() ? *uncommitted_since_ + options_.commit_interval
                                        : compact_at_;
}

void Writer::handle(Task& task) {
  if (!uncommitted_since_.has_value()) {
    uncommitted_since_ = clock_.now();
  }
  ++uncommitted_tasks_;
  if (const Status status = ingest_.handle(task); !status.ok()) {
    fail(status);
  }
}

bool Writer::commit_due(bool finished) const {
  if (!uncommitted_since_.has_value()) {
    return false;
  }
  return finished || uncommitted_tasks_ >= options_.commit_tasks_max ||
         (ingest_.urgent() && queue_.size() == 0) ||
         clock_.now() >= *uncommitted_since_ + options_.commit_interval;
}

void Writer::commit() {
  uncommitted_since_.reset();
  uncommitted_tasks_ = 0;
  if (const Status status = store_->commit(); !status.ok()) {
    fail(status);
    return;
  }
  if (std::exchange(failing_, false)) {
    log_info("event=store_recovered");
  }
  ++metrics_.commits;
  const store::Store::Counters counters = store_->counters();
  metrics_.report_stored({counters.frames, counters.samples, counters.duplicates, counters.events});
  if (std::vector<Answer> answers = ingest_.committed(); !answers.empty()) {
    sink_.deliver(std::move(answers));
  }
}

// Between two transactions, a bounded amount at a time: ingest waits at most for that.
void Writer::compact() {
  const Expected<bool> more = store_->compact();
  const Status status = more.ok() ? store_->commit() : more.status();
  if (!status.ok()) {
    fail(status);
  }
  const auto now = clock_.now();
  compact_at_ = more.value_or(false) ? now : now + kCompactInterval;
}

void Writer::fail(const Status& status) {
  ++metrics_.commit_failures;
  if (!std::exchange(failing_, true)) {
    log_error("event=store_failed reason=\"" + status.to_string() + "\"");
  }
  // Settles what the store still holds of the void transaction.
  static_cast<void>(store_->commit());
  uncommitted_since_.reset();
  uncommitted_tasks_ = 0;
  ingest_.failed(status);
  sink_.restart_sessions("the collector could not store what it received: " + status.message());
}

}  // namespace muster::collector
