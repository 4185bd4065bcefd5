// SPDX-License-Identifier: Apache-2.0
// The writer thread: takes tasks off the queue, commits in batches, hands the answers back.
//
// The thread owns the store from start() to the end of stop().
#pragma once

#include "collector/src/ingest.h"
#include "collector/src/service_options.h"
#include "collector/src/task_queue.h"

#include <muster/store/store.h>

#include <chrono>
#include <memory>
#include <optional>
#include <thread>

namespace muster::collector {

class Writer {
 public:
  // References must outlive it; `sink` is called on the writer thread.
  Writer(
      std::unique_ptr<store::Store> store,
      const Policy& policy,
      const Clock& clock,
      Metrics& metrics,
      HistoryReader read_history,
      TaskQueue& queue,
      AnswerSink& sink,
      const ServiceOptions& options);
  ~Writer();
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;
  Writer(Writer&&) = delete;
  Writer& operator=(Writer&&) = delete;

  void start();

  // Closes the queue, works off what is in it, commits, joins. Idempotent.
  void stop();

 private:
  void run();
  void handle(Task& task);
  [[nodiscard]] bool commit_due(bool finished) const;
  void commit();
  void compact();
  void fail(const Status& status);
  [[nodiscard]] MonotonicTime next_deadline() const;

  std::unique_ptr<store::Store> store_;
  const Clock& clock_;
  Metrics& metrics_;
  TaskQueue& queue_;
  AnswerSink& sink_;
  const ServiceOptions& options_;
  Ingest ingest_;
  std::optional<MonotonicTime> uncommitted_since_;
  std::size_t uncommitted_tasks_{0};
  MonotonicTime compact_at_{};
  bool failing_{false};
  std::thread thread_;
};

}  // namespace muster::collector
