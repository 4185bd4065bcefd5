// SPDX-License-Identifier: Apache-2.0
#include "collector/store/src/schema_table.h"

#include "collector/store/src/keys.h"
#include "collector/store/src/known_metrics.h"

namespace muster::store {

Status SchemaTable::add(const MetricSchema& schema, std::int64_t run_id, std::int32_t rank) {
  for (std::size_t i = 0; i < schema.metrics.size(); ++i) {
    if (schema.metrics[i].id != i) {
      return invalid_argument(
          "metric ",
          schema.metrics[i].name,
          " has id ",
          schema.metrics[i].id,
          " at position ",
          i,
          " of its schema; ids must count from 0");
    }
  }
  const std::uint64_t hash = schema.hash();
  MUSTER_ASSIGN_OR_RETURN(const std::optional<SchemaInfo> known, read(hash));
  if (!known) {
    MUSTER_RETURN_IF_ERROR(insert(schema, hash));
  }
  for (const MetricDescriptor& metric : schema.metrics) {
    if (metric.scope == MetricScope::kJob && rank != 0) {
      continue;
    }
    MUSTER_ASSIGN_OR_RETURN(
        StatementUse series,
        connection_.use("INSERT OR IGNORE INTO series (run_id, sender, slot, rank, name, layer, "
                        "idx, grp, unit, kind) VALUES (?1, ?2, (SELECT ifnull(max(slot) + 1, 0) "
                        "FROM series WHERE run_id = ?1 AND sender = ?2), ?3, ?4, ?5, ?6, ?7, ?8, "
                        "?9)"));
    series->bind(1, run_id).bind(2, std::int64_t{rank});
    series->bind(3, std::int64_t{metric.scope == MetricScope::kJob ? -1 : rank});
    series->bind(4, metric.name).bind(5, std::int64_t{metric.layer});
    series->bind(6, std::int64_t{metric.index}).bind(7, metric.group);
    series->bind(8, metric.unit).bind(9, static_cast<std::int64_t>(metric.kind));
    MUSTER_RETURN_IF_ERROR(series->run());
  }
  return check_slots(run_id, rank);
}

Status SchemaTable::check_slots(std::int64_t run_id, std::int32_t rank) {
  MUSTER_ASSIGN_OR_RETURN(
      StatementUse select,
      connection_.use("SELECT ifnull(max(slot), 0) FROM series WHERE run_id = ? AND sender = ?"));
  select->bind(1, run_id).bind(2, std::int64_t{rank});
  MUSTER_RETURN_IF_ERROR(select->step().status());
  if (select->integer(0) >= kSlotLimit) {
    return resource_exhausted(
        "rank ", rank, " has more than ", kSlotLimit, " series; send fewer metrics");
  }
  return {};
}

Status SchemaTable::insert(const MetricSchema& schema, std::uint64_t hash) {
  MUSTER_ASSIGN_OR_RETURN(
      StatementUse header,
      connection_.use("INSERT INTO schemas (hash, metric_count) VALUES (?, ?)"));
  header->bind(1, static_cast<std::int64_t>(hash));
  header->bind(2, static_cast<std::int64_t>(schema.metrics.size()));
  MUSTER_RETURN_IF_ERROR(header->run());
  const std::int64_t schema_id = connection_.last_insert_rowid();
  for (const MetricDescriptor& metric : schema.metrics) {
    MUSTER_ASSIGN_OR_RETURN(
        StatementUse row,
        connection_.use("INSERT INTO schema_metrics (schema_id, position, name, unit, kind, scope, "
                        "layer, idx, grp) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"));
    row->bind(1, schema_id).bind(2, std::int64_t{metric.id}).bind(3, metric.name);
    row->bind(4, metric.unit).bind(5, static_cast<std::int64_t>(metric.kind));
    row->bind(6, static_cast<std::int64_t>(metric.scope)).bind(7, std::int64_t{metric.layer});
    row->bind(8, std::int64_t{metric.index}).bind(9, metric.group);
    MUSTER_RETURN_IF_ERROR(row->run());
  }
  return {};
}

Expected<std::optional<SchemaInfo>> SchemaTable::read(std::uint64_t hash) {
  MUSTER_ASSIGN_OR_RETURN(
      StatementUse header,
      connection_.use("SELECT schema_id, metric_count, (SELECT count(*) FROM schema_metrics m "
                      "WHERE m.schema_id = s.schema_id AND scope <> 1) "
                      "FROM schemas s WHERE hash = ?"));
  header->bind(1, static_cast<std::int64_t>(hash));
  MUSTER_ASSIGN_OR_RETURN(const bool known, header->step());
  if (!known) {
    return std::optional<SchemaInfo>{};
  }
  SchemaInfo info;
  info.schema_id = header->integer(0);
  info.metric_count = static_cast<std::size_t>(header->integer(1));
  info.rank_metric_count = static_cast<std::size_t>(header->integer(2));
  MUSTER_ASSIGN_OR_RETURN(
      StatementUse loss,
      connection_.use("SELECT position FROM schema_metrics WHERE schema_id = ? AND scope = 1 "
                      "AND name = ? ORDER BY position LIMIT 1"));
  loss->bind(1, info.schema_id).bind(2, std::string_view{kLossMetric});
  MUSTER_ASSIGN_OR_RETURN(const bool has_loss, loss->step());
  if (has_loss) {
    info.loss_position = static_cast<std::size_t>(loss->integer(0));
  }
  return std::optional<SchemaInfo>{info};
}

Expected<const SchemaInfo*> SchemaTable::find(std::uint64_t hash) {
  const auto found = known_.find(hash);
  if (found != known_.end()) {
    return &found->second;
  }
  MUSTER_ASSIGN_OR_RETURN(const std::optional<SchemaInfo> info, read(hash));
  if (!info) {
    return failed_precondition("frames refer to schema ", hash, ", which was never registered");
  }
  return &known_.emplace(hash, *info).first->second;
}

Expected<std::vector<SchemaColumn>> read_columns(
    Connection& connection, std::int64_t schema_id, std::int64_t run_id, std::int64_t rank) {
  MUSTER_ASSIGN_OR_RETURN(
      StatementUse select,
      connection.use(
          "SELECT m.position, s.series_id, s.slot FROM schema_metrics m JOIN series s ON "
          "s.run_id = ?1 AND s.rank = iif(m.scope = 1, -1, ?2) AND s.name = m.name "
          "AND s.layer = m.layer AND s.idx = m.idx AND s.grp = m.grp "
          "WHERE m.schema_id = ?3 AND (m.scope <> 1 OR ?2 = 0) ORDER BY s.slot"));
  select->bind(1, run_id).bind(2, rank).bind(3, schema_id);
  std::vector<SchemaColumn> columns;
  while (true) {
    MUSTER_ASSIGN_OR_RETURN(const bool has_row, select->step());
    if (!has_row) {
      return columns;
    }
    columns.push_back(
        {static_cast<std::size_t>(select->integer(0)), select->integer(1), select->integer(2)});
  }
}

}  // namespace muster::store
