// SPDX-License-Identifier: Apache-2.0
#include "collector/store/src/command_log.h"
#include "collector/store/src/connection.h"
#include "collector/store/src/event_log.h"
#include "collector/store/src/keys.h"
#include "collector/store/src/known_metrics.h"
#include "collector/store/src/migrations.h"
#include "collector/store/src/range_reader.h"
#include "collector/store/src/run_lines.h"
#include "collector/store/src/step_reader.h"

#include <muster/store/query.h>

#include <limits>
#include <utility>

namespace muster::store {

namespace {

// After kShownName.
constexpr const char* kRunColumns =
    ", world_size, (SELECT ifnull(max(generation), 0) FROM generations g "
    "WHERE g.run_id = r.run_id), "
    "ifnull((SELECT min(step_first) FROM streams s WHERE s.run_id = r.run_id "
    "AND step_first >= 0), -1), "
    "ifnull((SELECT max(step_last) FROM streams s WHERE s.run_id = r.run_id AND generation = "
    "(SELECT max(generation) FROM streams s WHERE s.run_id = r.run_id AND step_last >= 0)), -1), "
    "started_unix_ns, last_seen_unix_ns, last_loss, sample_count, "
    "(SELECT ifnull(sum(dropped_count), 0) FROM sessions s WHERE s.run_id = r.run_id) FROM runs r ";

// A read transaction for the statements of one question, so that they see the same moment.
class Snapshot {
 public:
  [[nodiscard]] static Expected<Snapshot> take(Connection& connection) {
    MUSTER_RETURN_IF_ERROR(connection.execute("BEGIN"));
    return Snapshot{connection};
  }

  ~Snapshot() {
    if (connection_ != nullptr) {
      static_cast<void>(connection_->execute("ROLLBACK"));
    }
  }

  Snapshot(const Snapshot&) = delete;
  Snapshot& operator=(const Snapshot&) = delete;

  Snapshot(Snapshot&& other) noexcept : connection_(std::exchange(other.connection_, nullptr)) {}

  Snapshot& operator=(Snapshot&&) = delete;

 private:
  explicit Snapshot(Connection& connection) : connection_(&connection) {}

  Connection* connection_;
};

RunInfo read_run(StatementUse& row) {
  RunInfo info;
  info.run_id = row->text(0);
  info.world_size = static_cast<std::int32_t>(row->integer(1));
  info.generation = row->integer(2);
  info.first_step = row->integer(3);
  info.last_step = row->integer(4);
  info.started_unix_ns = row->integer(5);
  info.last_seen_unix_ns = row->integer(6);
  info.last_loss = row->is_null(7) ? std::numeric_limits<double>::quiet_NaN() : row->real(7);
  info.sample_count = row->integer(8);
  info.dropped_count = row->integer(9);
  return info;
}

class SqliteQuery final : public Query {
 public:
  explicit SqliteQuery(Connection connection)
      : connection_(std::move(connection)), ranges_(connection_), steps_(connection_) {}

  [[nodiscard]] Expected<std::vector<RunInfo>> runs() override;
  [[nodiscard]] Expected<RunInfo> run(const std::string& run_id) override;
  [[nodiscard]] Expected<std::vector<GenerationInfo>> generations(
      const std::string& run_id) override;
  [[nodiscard]] Expected<std::vector<SeriesInfo>> series(const std::string& run_id) override;
  [[nodiscard]] Expected<SeriesRange> range(
      const std::string& run_id,
      std::int64_t series_id,
      std::int64_t generation,
      std::int64_t step_begin,
      std::int64_t step_end,
      std::int32_t buckets_max) override;
  [[nodiscard]] Expected<StepValues> at_step(
      const std::string& run_id,
      const std::string& metric,
      std::int64_t generation,
      std::int64_t step) override;
  [[nodiscard]] Expected<std::vector<StoredEvent>> events(
      const std::string& run_id, std::int64_t after_event_id, std::int32_t limit) override;
  [[nodiscard]] Expected<std::vector<RankStatus>> ranks(const std::string& run_id) override;
  [[nodiscard]] Expected<std::vector<CommandStatus>> commands(const std::string& run_id) override;
  [[nodiscard]] Expected<std::int64_t> data_version() override;

 private:
  // Row id; kNotFound for an unknown run.
  [[nodiscard]] Expected<std::int64_t> find_run(const std::string& run_id);
  // The newest value of a rank-scope series in a generation; 0 when there is none.
  [[nodiscard]] Expected<double> newest_compute_seconds(
      const std::string& run_id, std::int64_t run, std::int64_t generation, std::int32_t rank);

  Connection connection_;
  RangeReader ranges_;
  StepReader steps_;
};

Expected<std::vector<RunInfo>> SqliteQuery::runs() {
  static const std::string kSql = std::string{"SELECT "} + kShownName + kRunColumns +
                                  "ORDER BY started_unix_ns DESC, run_id DESC";
  MUSTER_ASSIGN_OR_RETURN(StatementUse select, connection_.use(kSql.c_str()));
  std::vector<RunInfo> runs;
  while (true) {
    MUSTER_ASSIGN_OR_RETURN(const bool has_row, select->step());
    if (!has_row) {
      return runs;
    }
    runs.push_back(read_run(select));
  }
}

Expected<RunInfo> SqliteQuery::run(const std::string& run_id) {
  static const std::string kSql =
      std::string{"SELECT "} + kShownName + kRunColumns + "WHERE r.run_id = ?";
  MUSTER_ASSIGN_OR_RETURN(const std::int64_t run, find_run(run_id));
  MUSTER_ASSIGN_OR_RETURN(StatementUse select, connection_.use(kSql.c_str()));
  select->bind(1, run);
  MUSTER_ASSIGN_OR_RETURN(const bool has_row, select->step());
  if (!has_row) {
    return not_found("run \"" + run_id + "\" is not in this database");
  }
  return read_run(select);
}

Expected<std::int64_t> SqliteQuery::find_run(const std::string& run_id) {
  MUSTER_ASSIGN_OR_RETURN(const std::string name, resolve_run(connection_, run_id));
  MUSTER_ASSIGN_OR_RETURN(
      StatementUse select, connection_.use("SELECT run_id FROM runs WHERE name = ?"));
  select->bind(1, name);
  MUSTER_ASSIGN_OR_RETURN(const bool has_row, select->step());
  if (!has_row) {
    return not_found("run \"" + run_id + "\" is not in this database");
  }
  return select->integer(0);
}

Expected<std::vector<Query::GenerationInfo>> SqliteQuery::generations(const std::string& run_id) {
  MUSTER_ASSIGN_OR_RETURN(const std::int64_t run, find_run(run_id));
  MUSTER_ASSIGN_OR_RETURN(
      StatementUse select,
      connection_.use("SELECT s.generation, min(step_first), max(step_last), "
                      "min(g.started_unix_ns) FROM streams s JOIN generations g "
                      "ON g.run_id = s.run_id AND g.generation = s.generation "
                      "WHERE s.run_id = ? AND step_last >= 0 GROUP BY s.generation ORDER BY 1"));
  select->bind(1, run);
  std::vector<GenerationInfo> generations;
  while (true) {
    MUSTER_ASSIGN_OR_RETURN(const bool has_row, select->step());
    if (!has_row) {
      return generations;
    }
    generations.push_back(
        {select->integer(0), select->integer(1), select->integer(2), select->integer(3)});
  }
}

Expected<std::vector<SeriesInfo>> SqliteQuery::series(const std::string& run_id) {
  MUSTER_ASSIGN_OR_RETURN(const std::int64_t run, find_run(run_id));
  MUSTER_ASSIGN_OR_RETURN(
      StatementUse select,
      connection_.use("SELECT series_id, name, unit, kind, rank, layer, idx, grp FROM series "
                      "WHERE run_id = ? ORDER BY series_id"));
  select->bind(1, run);
  std::vector<SeriesInfo> all;
  while (true) {
    MUSTER_ASSIGN_OR_RETURN(const bool has_row, select->step());
    if (!has_row) {
      return all;
    }
    SeriesInfo& info = all.emplace_back();
    info.series_id = select->integer(0);
    info.name = select->text(1);
    info.unit = select->text(2);
    info.kind = static_cast<MetricKind>(select->integer(3));
    info.rank = static_cast<std::int32_t>(select->integer(4));
    info.scope = info.rank < 0 ? MetricScope::kJob : MetricScope::kRank;
    info.layer = static_cast<std::int32_t>(select->integer(5));
    info.index = static_cast<std::int32_t>(select->integer(6));
    info.group = select->text(7);
  }
}

Expected<SeriesRange> SqliteQuery::range(
    const std::string& run_id,
    std::int64_t series_id,
    std::int64_t generation,
    std::int64_t step_begin,
    std::int64_t step_end,
    std::int32_t buckets_max) {
  MUSTER_ASSIGN_OR_RETURN(const Snapshot snapshot, Snapshot::take(connection_));
  MUSTER_ASSIGN_OR_RETURN(const std::string name, resolve_run(connection_, run_id));
  return ranges_.read(name, series_id, generation, step_begin, step_end, buckets_max);
}

Expected<StepValues> SqliteQuery::at_step(
    const std::string& run_id,
    const std::string& metric,
    std::int64_t generation,
    std::int64_t step) {
  MUSTER_ASSIGN_OR_RETURN(const Snapshot snapshot, Snapshot::take(connection_));
  MUSTER_ASSIGN_OR_RETURN(const std::int64_t run, find_run(run_id));
  return steps_.read(run, metric, generation, step);
}

Expected<std::vector<StoredEvent>> SqliteQuery::events(
    const std::string& run_id, std::int64_t after_event_id, std::int32_t limit) {
  MUSTER_ASSIGN_OR_RETURN(const std::string name, resolve_run(connection_, run_id));
  return read_events(connection_, name, after_event_id, limit);
}

Expected<std::vector<RankStatus>> SqliteQuery::ranks(const std::string& run_id) {
  MUSTER_ASSIGN_OR_RETURN(const Snapshot snapshot, Snapshot::take(connection_));
  MUSTER_ASSIGN_OR_RETURN(const std::string name, resolve_run(connection_, run_id));
  MUSTER_ASSIGN_OR_RETURN(const std::int64_t run, find_run(run_id));
  MUSTER_ASSIGN_OR_RETURN(
      StatementUse select,
      connection_.use("SELECT rank, generation, incarnation, step, max(last_seen_unix_ns), "
                      "max(connected), dropped_count FROM sessions WHERE run_id = ?1 AND "
                      "rank >= 0 AND generation = (SELECT max(generation) FROM sessions "
                      "WHERE run_id = ?1 AND rank >= 0) GROUP BY rank ORDER BY rank"));
  select->bind(1, run);
  std::vector<RankStatus> ranks;
  while (true) {
    MUSTER_ASSIGN_OR_RETURN(const bool has_row, select->step());
    if (!has_row) {
      break;
    }
    RankStatus& status = ranks.emplace_back();
    status.rank = static_cast<std::int32_t>(select->integer(0));
    status.generation = select->integer(1);
    status.incarnation = select->text(2);
    status.step = select->integer(3);
    status.last_seen_unix_ns = select->integer(4);
    status.connected = select->integer(5) != 0;
    status.dropped_count = select->integer(6);
  }
  for (RankStatus& status : ranks) {
    MUSTER_ASSIGN_OR_RETURN(
        status.compute_seconds, newest_compute_seconds(name, run, status.generation, status.rank));
  }
  return ranks;
}

Expected<double> SqliteQuery::newest_compute_seconds(
    const std::string& run_id, std::int64_t run, std::int64_t generation, std::int32_t rank) {
  MUSTER_ASSIGN_OR_RETURN(
      StatementUse select,
      connection_.use("SELECT series_id, step_last FROM series s JOIN streams st ON "
                      "st.run_id = s.run_id AND st.rank = s.rank AND st.generation = ?3 "
                      "WHERE s.run_id = ?1 AND s.rank = ?2 AND name = ?4 AND step_last >= 0"));
  select->bind(1, run).bind(2, std::int64_t{rank}).bind(3, generation);
  select->bind(4, std::string_view{kComputeSecondsMetric});
  MUSTER_ASSIGN_OR_RETURN(const bool has_row, select->step());
  if (!has_row) {
    return 0.0;
  }
  const std::int64_t step = select->integer(1);
  MUSTER_ASSIGN_OR_RETURN(
      const SeriesRange range,
      ranges_.read(run_id, select->integer(0), generation, step, step + 1, 2));
  return range.buckets.empty() ? 0.0 : static_cast<double>(range.buckets.back().last);
}

Expected<std::vector<CommandStatus>> SqliteQuery::commands(const std::string& run_id) {
  MUSTER_ASSIGN_OR_RETURN(const Snapshot snapshot, Snapshot::take(connection_));
  MUSTER_ASSIGN_OR_RETURN(const std::string name, resolve_run(connection_, run_id));
  return read_command_statuses(connection_, name);
}

Expected<std::int64_t> SqliteQuery::data_version() {
  MUSTER_ASSIGN_OR_RETURN(
      StatementUse select, connection_.use("SELECT value FROM meta WHERE key = 'commit_count'"));
  MUSTER_ASSIGN_OR_RETURN(const bool has_row, select->step());
  return has_row ? select->integer(0) : 0;
}

}  // namespace

Expected<std::unique_ptr<Query>> Query::open(const std::filesystem::path& database) {
  MUSTER_ASSIGN_OR_RETURN(
      Connection connection, Connection::open(database, Connection::Mode::kReader));
  MUSTER_RETURN_IF_ERROR(check_version(connection, database.string()));
  MUSTER_ASSIGN_OR_RETURN(const std::int64_t version, connection.integer("PRAGMA user_version"));
  if (version < 1) {
    return failed_precondition(
        database.string(),
        ": has schema version ",
        version,
        "; if it was copied while a collector wrote it, copy ",
        database.string(),
        "-wal, too; else open it once with this muster's collector");
  }
  MUSTER_RETURN_IF_ERROR(read_as_newest(connection));
  return std::unique_ptr<Query>{std::make_unique<SqliteQuery>(std::move(connection))};
}

}  // namespace muster::store
