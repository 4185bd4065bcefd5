// SPDX-License-Identifier: Apache-2.0
// Contents of /metrics: the collector's own counters and the newest values of every run.
//
// Thread-safe: the writer and the I/O thread report, any thread asks for the text. Text is built
// when it is asked for; reporting copies one row of floats per batch.
#pragma once

#include "collector/src/schema_view.h"

#include <muster/common/ids.h>
#include <muster/common/mutex.h>
#include <muster/common/telemetry.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace muster::collector {

class Exposition;

class Metrics {
 public:
  // Counters of the store since it was opened.
  struct Stored {
    std::int64_t frames{0};
    std::int64_t samples{0};
    std::int64_t duplicates{0};
    std::int64_t events{0};
  };

  // The newest frames of one rank, ascending.
  void report_frames(
      const Identity& identity,
      const std::shared_ptr<const SchemaView>& view,
      std::span<const SampleFrame> frames);
  void report_dropped(const Identity& identity, std::int64_t dropped_count);
  void report_connected(std::map<std::string, std::int64_t> agents_by_run, std::int64_t sessions);
  void report_stored(const Stored& stored);
  void report_finding(const std::string& rule);

  // NOLINTBEGIN(misc-non-private-member-variables-in-classes): counters without an invariant
  std::atomic<std::int64_t> commits{0};
  std::atomic<std::int64_t> commit_failures{0};
  std::atomic<std::int64_t> sessions_accepted{0};
  std::atomic<std::int64_t> sessions_refused{0};
  std::atomic<std::int64_t> streams_damaged{0};
  std::atomic<std::int64_t> messages_unknown{0};
  std::atomic<std::int64_t> outbox_overflows{0};
  std::atomic<std::int64_t> queue_full{0};
  std::atomic<std::int64_t> epoch{0};
  // NOLINTEND(misc-non-private-member-variables-in-classes)

  // Prometheus exposition format 0.0.4.
  [[nodiscard]] std::string text() const;

 private:
  struct RankValues {
    Generation generation;
    std::int64_t step{-1};
    std::shared_ptr<const SchemaView> view;
    std::vector<float> newest;         // [metrics]
    std::vector<double> delta_totals;  // [delta columns]
    std::int64_t dropped_count{0};
  };

  struct RunValues {
    std::map<Rank, RankValues> ranks;
    std::uint64_t touched{0};
  };

  RankValues& rank_values(const Identity& identity) MUSTER_REQUIRES(mutex_);
  static void add_rank(
      Exposition& page, const std::string& run, Rank rank, const RankValues& values);

  mutable Mutex mutex_;
  std::map<std::string, RunValues> runs_ MUSTER_GUARDED_BY(mutex_);
  std::map<std::string, std::int64_t> agents_by_run_ MUSTER_GUARDED_BY(mutex_);
  std::map<std::string, std::int64_t> findings_by_rule_ MUSTER_GUARDED_BY(mutex_);
  std::int64_t sessions_ MUSTER_GUARDED_BY(mutex_){0};
  std::uint64_t touches_ MUSTER_GUARDED_BY(mutex_){0};
  Stored stored_ MUSTER_GUARDED_BY(mutex_);
};

}  // namespace muster::collector
