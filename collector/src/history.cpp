// SPDX-License-Identifier: Apache-2.0
#include "collector/src/history.h"

#include "collector/src/schema_view.h"

#include <muster/common/log.h>
#include <muster/store/query.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

namespace muster::collector {

namespace {

constexpr std::int64_t kObservedStepsMax = 512;
constexpr std::int32_t kEventsPerPage = 1000;
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// Metrics that detectors compare with earlier values. Logits are excluded: for thousands of heads,
// only whether they exceed tau is kept.
constexpr std::array<std::string_view, 8> kJudged{
    "train_loss_nats",
    "train_grad_norm",
    "train_step_skipped",
    "train_attn_mode",
    "train_attn_query_reach",
    "train_attn_block_reach",
    "train_ep_rank_imbalance_ratio",
    "train_moe_maxvio_ratio"};

// A series as a column of the frames that are put together again.
std::optional<MetricDescriptor> judged_column(const store::SeriesInfo& info, std::size_t column) {
  const bool known = std::find(kJudged.begin(), kJudged.end(), info.name) != kJudged.end();
  if (!known || info.scope != MetricScope::kJob || !info.group.empty() || info.index >= 0) {
    return std::nullopt;
  }
  MetricDescriptor metric;
  metric.id = static_cast<std::uint32_t>(column);
  metric.name = info.name;
  metric.scope = info.scope;
  metric.layer = info.layer;
  return metric;
}

using FrameByStep = std::map<std::int64_t, SampleFrame>;

// The newest values of a series, into their column. Buckets of one step keep no NaN apart from
// infinities: both come back as NaN, which the detectors treat alike.
Status read_column(
    store::Query& query,
    const std::string& run_id,
    std::int64_t series_id,
    std::size_t column,
    const History& history,
    FrameByStep& frames) {
  const std::int64_t begin = std::max<std::int64_t>(0, history.last_step + 1 - kObservedStepsMax);
  MUSTER_ASSIGN_OR_RETURN(
      const store::SeriesRange range,
      query.range(
          run_id,
          series_id,
          history.generation.value(),
          begin,
          history.last_step + 1,
          static_cast<std::int32_t>(kObservedStepsMax)));
  for (const store::Bucket& bucket : range.buckets) {
    SampleFrame& frame = frames[bucket.step_first];
    frame.step = bucket.step_first;
    if (frame.values.size() <= column) {
      frame.values.resize(column + 1, kNaN);
    }
    frame.values[column] = bucket.nonfinite_count == 0 ? bucket.last : kNaN;
  }
  return {};
}

Status read_observations(store::Query& query, const std::string& run_id, History& history) {
  MUSTER_ASSIGN_OR_RETURN(const std::vector<store::SeriesInfo> series, query.series(run_id));
  MetricSchema schema;
  FrameByStep frames;
  bool has_loss = false;
  bool has_norm = false;
  for (const store::SeriesInfo& info : series) {
    const std::size_t column = schema.metrics.size();
    const std::optional<MetricDescriptor> metric = judged_column(info, column);
    if (!metric) {
      continue;
    }
    schema.metrics.push_back(*metric);
    has_loss = has_loss || info.name == kJudged[0];
    has_norm = has_norm || info.name == kJudged[1];
    MUSTER_RETURN_IF_ERROR(read_column(query, run_id, info.series_id, column, history, frames));
  }
  if (!has_loss || !has_norm) {
    return {};
  }
  const std::size_t columns = schema.metrics.size();
  const SchemaView view{std::move(schema)};
  for (auto& [step, frame] : frames) {
    frame.values.resize(columns, kNaN);
    if (auto observation = view.observe(history.generation, frame)) {
      history.observations.push_back(*std::move(observation));
    }
  }
  return {};
}

Status read_events(store::Query& query, const std::string& run_id, History& history) {
  for (std::int64_t after = 0;;) {
    MUSTER_ASSIGN_OR_RETURN(
        std::vector<store::StoredEvent> page, query.events(run_id, after, kEventsPerPage));
    for (store::StoredEvent& stored : page) {
      after = stored.event_id;
      if (stored.event.kind == event_kind::kRunEnded) {
        history.ended = stored.event.reason;
      } else if (
          stored.event.kind == event_kind::kRunStarted ||
          stored.event.kind == event_kind::kRestart) {
        history.ended.clear();
      }
      const bool mode_change = stored.event.kind == event_kind::kAttentionModeChanged &&
                               stored.generation == history.generation.value();
      if (mode_change || stored.event.kind == event_kind::kAction) {
        history.events.push_back(std::move(stored.event));
      }
    }
    if (page.size() < static_cast<std::size_t>(kEventsPerPage)) {
      return {};
    }
  }
}

Status read(const std::filesystem::path& database, const std::string& run_id, History& history) {
  MUSTER_ASSIGN_OR_RETURN(const std::unique_ptr<store::Query> query, store::Query::open(database));
  // A name alone means the newest run that asked for it.
  const std::string line = run_id + "#1";
  const Expected<store::RunInfo> run = query->run(line);
  if (!run.ok()) {
    return run.status().code() == StatusCode::kNotFound ? Status{} : run.status();
  }
  history.known = true;
  history.generation = Generation{run->generation};
  history.last_step = run->last_step;
  MUSTER_RETURN_IF_ERROR(read_events(*query, line, history));
  return history.last_step < 0 ? Status{} : read_observations(*query, line, history);
}

}  // namespace

History read_history(const std::filesystem::path& database, const std::string& run_id) {
  History history;
  if (const Status status = read(database, run_id, history); !status.ok()) {
    log_warning(
        "event=history_unreadable run=" + run_id + " reason=\"" + status.to_string() + "\"");
  }
  return history;
}

}  // namespace muster::collector
