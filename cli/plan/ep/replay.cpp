// SPDX-License-Identifier: Apache-2.0
#include "cli/plan/ep/replay.h"

#include <algorithm>
#include <map>

namespace muster::cli {

namespace {

using parallel::EpBalanceMode;
using parallel::EpPlan;
using parallel::EpPlanner;
using parallel::EpPlanStatistics;
using parallel::EpTraceHeader;
using parallel::EpTraceReader;
using parallel::EpTraceRecord;

std::size_t at(std::int64_t index) {
  return static_cast<std::size_t>(index);
}

Expected<EpTraceHeader> replaced(const EpTraceHeader& recorded, const EpReplayOptions& options) {
  EpTraceHeader header = recorded;
  header.shape.slots = options.slots.value_or(recorded.shape.slots);
  header.shape.padding = options.padding.value_or(recorded.shape.padding);
  parallel::EpBalance& balance = header.balance;
  balance.mode =
      options.mode.value_or(options.tolerance ? EpBalanceMode::kTolerant : recorded.balance.mode);
  balance.tolerance = options.tolerance.value_or(recorded.balance.tolerance);
  balance.homes_max = options.homes_max.value_or(recorded.balance.homes_max);
  balance.speeds = options.speeds.value_or(recorded.balance.speeds);
  // Other speeds may need more room than the recorded buffers had.
  balance.capacity_max =
      options.capacity_max.value_or(options.speeds ? 0 : recorded.balance.capacity_max);
  MUSTER_RETURN_IF_ERROR(check(header.shape, balance));
  return header;
}

// Number of rows that a rank keeps, one per choice: the overlap of its rows of an expert with the
// rows that it computes, both of which follow those of lower ranks.
std::int64_t rows_kept(const EpPlan& plan, int rank) {
  const auto experts = at(plan.shape.experts);
  std::int64_t kept = 0;
  for (std::size_t e = 0; e < experts; ++e) {
    std::int64_t from = 0;
    std::int64_t computed = 0;
    for (std::size_t lower = 0; lower < at(rank); ++lower) {
      from += plan.counts[lower * experts + e];
      computed += plan.rows[lower * experts + e];
    }
    const std::int64_t to = from + plan.counts[at(rank) * experts + e];
    const std::int64_t end = computed + plan.rows[at(rank) * experts + e];
    kept += std::max<std::int64_t>(0, std::min(to, end) - std::max(from, computed));
  }
  return kept;
}

// One of the two planners, its plan and scratch.
class Replayer {
 public:
  explicit Replayer(const EpTraceHeader& header)
      : planner_(header.shape, header.balance), plan_(header.shape, header.balance) {}

  Status plan(const EpTraceRecord& record) {
    MUSTER_RETURN_IF_ERROR(planner_.plan(record.counts, plan_));
    return record.choices.empty() ? Status{} : planner_.place(record.rank, record.choices, plan_);
  }

  [[nodiscard]] const EpPlan& plan() const { return plan_; }

  [[nodiscard]] std::int64_t rows_sent(const EpTraceRecord& record) const {
    if (record.choices.empty()) {
      return record.tokens * plan_.shape.top_k - rows_kept(plan_, record.rank);
    }
    const std::int64_t first = record.rank * plan_.receive_rows;
    return std::count_if(
        plan_.destinations.begin(), plan_.destinations.end(), [&](std::int64_t place) {
          return place >= 0 && (place < first || place >= first + plan_.receive_rows);
        });
  }

 private:
  EpPlanner planner_;
  EpPlan plan_;
};

void add(const EpPlanStatistics& statistics, EpReplaySums& sums) {
  ++sums.plans;
  sums.imbalance_after += statistics.rank_imbalance_after;
  sums.imbalance_after_max = std::max(sums.imbalance_after_max, statistics.rank_imbalance_after);
  sums.copies += statistics.copies;
  sums.copies_out_max = std::max(sums.copies_out_max, statistics.copies_out_max);
  sums.overflow += statistics.overflow_groups;
  sums.rows_moved += statistics.rows_moved;
  sums.surplus += statistics.surplus;
  sums.pad_rows += statistics.pad_rows;
}

void add_wire(const Replayer& replayer, const EpTraceRecord& record, EpReplaySums& sums) {
  sums.wire_tokens += record.tokens;
  sums.wire_rows += replayer.rows_sent(record);
}

void add_record(const EpTraceRecord& record, EpReplayReport& report, EpReplayLayer& layer) {
  layer.layer = record.layer;
  ++layer.steps;
  layer.rows += record.statistics.rows;
  layer.max_violation_max = std::max(layer.max_violation_max, record.statistics.max_violation);
  layer.imbalance_before += record.statistics.rank_imbalance;
  layer.imbalance_before_max =
      std::max(layer.imbalance_before_max, record.statistics.rank_imbalance);
  add(record.statistics, layer.recorded);
  report.first_step = report.records == 0 ? record.step : std::min(report.first_step, record.step);
  report.last_step = std::max(report.last_step, record.step);
  report.rank = record.rank;
  report.deduplicated = report.deduplicated && (!record.choices.empty() || record.tokens == 0);
  ++report.records;
}

}  // namespace

Expected<EpReplayReport> replay(const std::filesystem::path& file, const EpReplayOptions& options) {
  MUSTER_ASSIGN_OR_RETURN(EpTraceReader reader, EpTraceReader::open(file));
  EpReplayReport report;
  report.file = file.string();
  report.recorded = reader.header();
  report.row_bytes = options.row_bytes;
  MUSTER_ASSIGN_OR_RETURN(report.replayed, replaced(report.recorded, options));
  Replayer recorded{report.recorded};
  Replayer replayed{report.replayed};
  std::map<int, EpReplayLayer> layers;
  EpTraceRecord record;
  while (true) {
    MUSTER_ASSIGN_OR_RETURN(const bool more, reader.next(record));
    if (!more) {
      break;
    }
    EpReplayLayer& layer = layers[record.layer];
    add_record(record, report, layer);
    const std::string where =
        "layer " + std::to_string(record.layer) + ", step " + std::to_string(record.step);
    if (const Status status = recorded.plan(record);
        status.ok() && recorded.plan().hash == record.plan_hash) {
      ++report.reproduced;
      add_wire(recorded, record, layer.recorded);
    } else if (status.code() == StatusCode::kInvalidArgument) {
      return data_loss(report.file, ": ", where, ": ", status.message());
    }
    if (const Status status = replayed.plan(record); status.ok()) {
      add(replayed.plan().statistics, layer.replayed);
      add_wire(replayed, record, layer.replayed);
    } else if (report.refused++ == 0) {
      report.refusal = where + ": " + status.message();
    }
  }
  for (const auto& [number, layer] : layers) {
    report.layers.push_back(layer);
  }
  return report;
}

}  // namespace muster::cli
