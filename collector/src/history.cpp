#include "src/history.h"

#include <muster/common/log.h>
#include <muster/store/query.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>

namespace muster::collector {

namespace {

constexpr std::int64_t kObservedStepsMax = 512;
constexpr std::int32_t kEventsPerPage = 1000;

using ValueByStep = std::map<std::int64_t, double>;

// The newest values of a job-wide series. Buckets of one step keep no NaN apart from infinities:
// both come back as NaN, which the detectors treat alike.
Expected<ValueByStep> read_values(
    store::Query& query,
    const std::string& run_id,
    const std::vector<store::SeriesInfo>& series,
    const std::string& name,
    const History& history) {
  const auto wanted = std::find_if(series.begin(), series.end(), [&](const auto& info) {
    return info.name == name && info.scope == MetricScope::kJob && info.group.empty() &&
           info.layer < 0;
  });
  ValueByStep values;
  if (wanted == series.end()) {
    return values;
  }
  const std::int64_t begin = std::max<std::int64_t>(0, history.last_step + 1 - kObservedStepsMax);
  MUSTER_ASSIGN_OR_RETURN(
      const store::SeriesRange range,
      query.range(
          run_id,
          wanted->series_id,
          history.generation.value(),
          begin,
          history.last_step + 1,
          static_cast<std::int32_t>(kObservedStepsMax)));
  for (const store::Bucket& bucket : range.buckets) {
    const bool finite = bucket.nonfinite_count == 0;
    values.emplace(
        bucket.step_first,
        finite ? static_cast<double>(bucket.last) : std::numeric_limits<double>::quiet_NaN());
  }
  return values;
}

Status read_observations(store::Query& query, const std::string& run_id, History& history) {
  MUSTER_ASSIGN_OR_RETURN(const std::vector<store::SeriesInfo> series, query.series(run_id));
  const auto read = [&](const char* name) {
    return read_values(query, run_id, series, name, history);
  };
  MUSTER_ASSIGN_OR_RETURN(const ValueByStep loss, read("train_loss_nats"));
  MUSTER_ASSIGN_OR_RETURN(const ValueByStep norm, read("train_grad_norm"));
  MUSTER_ASSIGN_OR_RETURN(const ValueByStep skipped, read("train_step_skipped"));
  for (const auto& [step, value] : loss) {
    const auto gradient_norm = norm.find(step);
    if (gradient_norm == norm.end()) {
      continue;
    }
    detect::StepObservation observation;
    observation.step = step;
    observation.generation = history.generation.value();
    observation.loss = value;
    observation.gradient_norm = gradient_norm->second;
    observation.max_logit = std::numeric_limits<double>::quiet_NaN();
    const auto skip = skipped.find(step);
    observation.skipped = skip != skipped.end() && skip->second > 0;
    history.observations.push_back(observation);
  }
  return {};
}

Status read_actions(store::Query& query, const std::string& run_id, History& history) {
  for (std::int64_t after = 0;;) {
    MUSTER_ASSIGN_OR_RETURN(
        std::vector<store::StoredEvent> page, query.events(run_id, after, kEventsPerPage));
    for (store::StoredEvent& stored : page) {
      after = stored.event_id;
      if (stored.event.kind == event_kind::kAction) {
        history.actions.push_back(std::move(stored.event));
      }
    }
    if (page.size() < static_cast<std::size_t>(kEventsPerPage)) {
      return {};
    }
  }
}

Status read(const std::filesystem::path& database, const std::string& run_id, History& history) {
  MUSTER_ASSIGN_OR_RETURN(const std::unique_ptr<store::Query> query, store::Query::open(database));
  const Expected<store::RunInfo> run = query->run(run_id);
  if (!run.ok()) {
    return run.status().code() == StatusCode::kNotFound ? Status{} : run.status();
  }
  history.known = true;
  history.generation = Generation{run->generation};
  history.last_step = run->last_step;
  MUSTER_RETURN_IF_ERROR(read_actions(*query, run_id, history));
  return history.last_step < 0 ? Status{} : read_observations(*query, run_id, history);
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
