// SPDX-License-Identifier: Apache-2.0
#include "collector/src/metrics.h"

#include "collector/src/exposition.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string_view>
#include <tuple>

namespace muster::collector {

namespace {

constexpr std::size_t kRunsWithMetricsMax = 64;

// Heads and experts are not labels, which would multiply the series: the largest value represents
// its layer. NaN only if all values are NaN.
using RowKey = std::tuple<std::string, std::int32_t, std::string>;  // name, layer, group

struct Row {
  const MetricDescriptor* metric{nullptr};
  double value{0};
};

void keep_largest(std::map<RowKey, Row>& rows, const MetricDescriptor& metric, double value) {
  const auto [found, fresh] =
      rows.try_emplace({metric.name, metric.layer, metric.group}, Row{&metric, value});
  if (!fresh && (std::isnan(found->second.value) || value > found->second.value)) {
    found->second.value = value;
  }
}

Labels labels_of(const MetricDescriptor& metric, const std::string& run, Rank rank) {
  Labels labels{{"run", run}};
  if (metric.scope == MetricScope::kRank) {
    labels.emplace_back("rank", std::to_string(rank.value()));
  }
  if (metric.layer >= 0) {
    labels.emplace_back("layer", std::to_string(metric.layer));
  }
  if (!metric.group.empty()) {
    const bool phase = metric.name.find("phase") != std::string::npos;
    labels.emplace_back(phase ? "phase" : "group", metric.group);
  }
  return labels;
}

std::string help_of(const MetricDescriptor& metric, std::string_view what) {
  std::string help = std::string{what} + " in " + (metric.unit.empty() ? "1" : metric.unit);
  return metric.index >= 0 ? help + ", largest of its heads or experts" : help;
}

std::string total_name(const std::string& name) {
  constexpr std::string_view kSuffix = "_count";
  const bool counts = name.size() > kSuffix.size() && name.ends_with(kSuffix);
  return (counts ? name.substr(0, name.size() - kSuffix.size()) : name) + "_total";
}

}  // namespace

Metrics::RankValues& Metrics::rank_values(const Identity& identity) {
  if (!runs_.contains(identity.run_id) && runs_.size() >= kRunsWithMetricsMax) {
    runs_.erase(std::min_element(runs_.begin(), runs_.end(), [](const auto& a, const auto& b) {
      return a.second.touched < b.second.touched;
    }));
  }
  RunValues& run = runs_[identity.run_id];
  run.touched = ++touches_;
  return run.ranks[identity.rank];
}

void Metrics::report_frames(
    const Identity& identity,
    const std::shared_ptr<const SchemaView>& view,
    std::span<const SampleFrame> frames) {
  if (frames.empty()) {
    return;
  }
  const MutexLock lock{mutex_};
  RankValues& rank = rank_values(identity);
  if (identity.generation < rank.generation) {
    return;  // The late word of a process that was replaced.
  }
  if (rank.view == nullptr || rank.view->schema() != view->schema()) {
    rank.delta_totals.assign(view->delta_columns().size(), 0.0);
  }
  rank.view = view;
  rank.generation = identity.generation;
  rank.step = frames.back().step;
  rank.newest = frames.back().values;
  for (std::size_t i = 0; i < rank.delta_totals.size(); ++i) {
    for (const SampleFrame& frame : frames) {
      const auto delta = static_cast<double>(frame.values[view->delta_columns()[i]]);
      rank.delta_totals[i] += std::isfinite(delta) && delta > 0 ? delta : 0.0;
    }
  }
}

void Metrics::report_dropped(const Identity& identity, std::int64_t dropped_count) {
  const MutexLock lock{mutex_};
  rank_values(identity).dropped_count = dropped_count;
}

void Metrics::report_connected(
    std::map<std::string, std::int64_t> agents_by_run, std::int64_t sessions) {
  const MutexLock lock{mutex_};
  agents_by_run_ = std::move(agents_by_run);
  sessions_ = sessions;
}

void Metrics::report_stored(const Stored& stored) {
  const MutexLock lock{mutex_};
  stored_ = stored;
}

void Metrics::report_finding(const std::string& rule) {
  const MutexLock lock{mutex_};
  ++findings_by_rule_[rule];
}

std::string Metrics::text() const {
  Exposition page;
  const auto own = [&](std::string_view name, std::string_view help, std::int64_t value) {
    const std::string_view type = name.ends_with("_total") ? "counter" : "gauge";
    page.add(name, type, help, {}, static_cast<double>(value));
  };
  const MutexLock lock{mutex_};
  own("muster_frames_total", "Frames stored", stored_.frames);
  own("muster_samples_total", "Samples stored", stored_.samples);
  own("muster_duplicate_frames_total", "Frames received again", stored_.duplicates);
  own("muster_events_total", "Events stored", stored_.events);
  own("muster_commits_total", "Transactions committed", commits);
  own("muster_commit_failures_total", "Transactions that failed", commit_failures);
  own("muster_sessions", "Connections of any role", sessions_);
  own("muster_sessions_accepted_total", "Connections let in", sessions_accepted);
  own("muster_sessions_refused_total", "Connections turned away", sessions_refused);
  own("muster_streams_damaged_total", "Connections ended by bad bytes", streams_damaged);
  own("muster_messages_unknown_total", "Messages of a newer protocol skipped", messages_unknown);
  own("muster_outbox_overflows_total", "Connections ended as too slow", outbox_overflows);
  own("muster_queue_full_total", "Times that reading stopped for the store", queue_full);
  own("muster_collector_epoch", "Starts of the collector on this database", epoch);
  for (const auto& [rule, count] : findings_by_rule_) {
    page.add(
        "muster_findings_total",
        "counter",
        "Findings by rule",
        {{"rule", rule}},
        static_cast<double>(count));
  }
  for (const auto& [run, agents] : agents_by_run_) {
    page.add(
        "muster_connected_agents",
        "gauge",
        "Agents connected",
        {{"run", run}},
        static_cast<double>(agents));
  }
  for (const auto& [run, values] : runs_) {
    for (const auto& [rank, newest] : values.ranks) {
      add_rank(page, run, rank, newest);
    }
  }
  return page.text();
}

void Metrics::add_rank(
    Exposition& page, const std::string& run, Rank rank, const RankValues& values) {
  const Labels identity{{"run", run}, {"rank", std::to_string(rank.value())}};
  page.add(
      "muster_dropped_frames_total",
      "counter",
      "Frames that the agent dropped",
      identity,
      static_cast<double>(values.dropped_count));
  if (values.view == nullptr) {
    return;
  }
  page.add(
      "train_step", "gauge", "Newest finished step", identity, static_cast<double>(values.step));
  page.add(
      "train_generation",
      "gauge",
      "Launch of the job",
      identity,
      static_cast<double>(values.generation.value()));
  const std::vector<MetricDescriptor>& metrics = values.view->schema().metrics;
  std::map<RowKey, Row> newest;
  for (const MetricDescriptor& metric : metrics) {
    // Job scope is rank 0's to say; deltas appear as totals.
    const bool foreign = metric.scope == MetricScope::kJob && rank != Rank{0};
    if (!foreign && metric.kind != MetricKind::kDelta) {
      keep_largest(newest, metric, static_cast<double>(values.newest[metric.id]));
    }
  }
  for (const auto& [key, row] : newest) {
    page.add(
        row.metric->name,
        "gauge",
        help_of(*row.metric, "Newest value"),
        labels_of(*row.metric, run, rank),
        row.value);
  }
  std::map<RowKey, Row> totals;
  for (std::size_t i = 0; i < values.delta_totals.size(); ++i) {
    const MetricDescriptor& metric = metrics[values.view->delta_columns()[i]];
    if (metric.scope == MetricScope::kRank || rank == Rank{0}) {
      keep_largest(totals, metric, values.delta_totals[i]);
    }
  }
  for (const auto& [key, row] : totals) {
    page.add(
        total_name(row.metric->name),
        "counter",
        help_of(*row.metric, "Sum since the collector saw it"),
        labels_of(*row.metric, run, rank),
        row.value);
  }
}

}  // namespace muster::collector
