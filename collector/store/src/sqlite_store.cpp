// SPDX-License-Identifier: Apache-2.0
#include "collector/store/src/sqlite_store.h"

#include "collector/store/src/command_log.h"
#include "collector/store/src/event_log.h"
#include "collector/store/src/migrations.h"

#include <muster/common/log.h>

#include <unistd.h>

#include <utility>

namespace muster::store {

namespace fs = std::filesystem;

namespace {

// Of one compact(): a few dozen milliseconds on one core.
constexpr std::int64_t kCompactSamplesMax = 1'000'000;

Status prepare_writer(Connection& connection) {
  MUSTER_RETURN_IF_ERROR(connection.execute(
      "PRAGMA page_size = 16384; PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; "
      "PRAGMA wal_autocheckpoint = 2000; PRAGMA journal_size_limit = 67108864; "
      "PRAGMA cache_size = -32768; PRAGMA temp_store = MEMORY;"));
  return migrate(connection);
}

// Looks at a file that exists already without changing it.
Status check_existing(const fs::path& database) {
  std::error_code ignored;
  if (!fs::exists(database, ignored) || fs::file_size(database, ignored) == 0) {
    return {};
  }
  MUSTER_ASSIGN_OR_RETURN(Connection reader, Connection::open(database, Connection::Mode::kReader));
  return check_version(reader, database.string());
}

}  // namespace

Expected<std::unique_ptr<Store>> Store::open(const fs::path& database, const Clock& clock) {
  MUSTER_RETURN_IF_ERROR(check_database_name(database));
  MUSTER_RETURN_IF_ERROR(check_existing(database));
  Expected<FileLock> lock = FileLock::acquire(
      database.string() + ".lock", "muster collector, pid " + std::to_string(::getpid()));
  if (!lock) {
    return lock.status().context(
        "database " + database.string() +
        (lock.status().code() == StatusCode::kAlreadyExists
             ? " has a collector already; stop it or choose another file"
             : " cannot be locked"));
  }
  MUSTER_ASSIGN_OR_RETURN(
      Connection connection, Connection::open(database, Connection::Mode::kWriter));
  MUSTER_RETURN_IF_ERROR(check_version(connection, database.string()));
  MUSTER_RETURN_IF_ERROR(prepare_writer(connection));
  auto store = std::make_unique<SqliteStore>(std::move(lock).value(), std::move(connection), clock);
  MUSTER_RETURN_IF_ERROR(store->start());
  return std::unique_ptr<Store>{std::move(store)};
}

SqliteStore::SqliteStore(FileLock lock, Connection connection, const Clock& clock)
    : lock_(std::move(lock)),
      connection_(std::move(connection)),
      clock_(clock),
      sessions_(connection_, clock),
      schemas_(connection_),
      frames_(connection_),
      compactor_(connection_) {}

SqliteStore::~SqliteStore() {
  // Like a crash: what was not committed is not kept.
  if (connection_.in_transaction()) {
    static_cast<void>(connection_.execute("ROLLBACK"));
  }
}

Status SqliteStore::start() {
  MUSTER_RETURN_IF_ERROR(connection_.execute(
      "BEGIN IMMEDIATE; UPDATE meta SET value = value + 1 WHERE key IN ('epoch', 'commit_count'); "
      "UPDATE sessions SET connected = 0 WHERE connected <> 0; COMMIT;"));
  MUSTER_RETURN_IF_ERROR(connection_.sync_log());
  MUSTER_ASSIGN_OR_RETURN(
      epoch_, connection_.integer("SELECT value FROM meta WHERE key = 'epoch'"));
  MUSTER_ASSIGN_OR_RETURN(ready_, compactor_.find_ready());
  return {};
}

Status SqliteStore::begin() {
  if (connection_.in_transaction()) {
    return {};
  }
  return connection_.execute("BEGIN IMMEDIATE");
}

void SqliteStore::undo() {
  if (connection_.in_transaction()) {
    static_cast<void>(connection_.execute("ROLLBACK"));
  }
  sessions_.clear();
  schemas_.clear();
  must_sync_ = false;
  ready_ = compactor_.find_ready().value_or({});
}

Status SqliteStore::fail(const Status& error) {
  undo();
  lost_ = error.context("everything since the last commit is undone and all sessions are closed");
  return lost_;
}

Expected<std::uint64_t> SqliteStore::open_session(
    const Identity& identity, std::int32_t world_size) {
  if (Status status = begin(); !status.ok()) {
    return fail(std::move(status));
  }
  const Expected<SessionState*> session = sessions_.open(identity, world_size);
  if (session) {
    return (*session)->acked_seq;
  }
  return session.status().code() == StatusCode::kInvalidArgument ? session.status()
                                                                 : fail(session.status());
}

Expected<bool> SqliteStore::keep_line(const RunLine& line) {
  MUSTER_ASSIGN_OR_RETURN(RunState* const run, sessions_.run(line.name));
  if (Status status = begin(); !status.ok()) {
    return fail(std::move(status));
  }
  Expected<bool> kept = write_run_line(connection_, run->run_id, line);
  return kept ? kept : fail(kept.status());
}

void SqliteStore::close_session(const Identity& identity) {
  Status status = begin();
  if (status.ok()) {
    status = sessions_.close(identity);
  }
  if (!status.ok()) {
    // The next commit returns it.
    static_cast<void>(fail(std::move(status)));
  }
}

Status SqliteStore::register_schema(const Identity& identity, const MetricSchema& schema) {
  MUSTER_ASSIGN_OR_RETURN(SessionState* const session, sessions_.find(identity));
  Status status = begin();
  if (status.ok()) {
    status = schemas_.add(schema, session->run->run_id, identity.rank.value());
  }
  const bool harmless = status.ok() || status.code() == StatusCode::kInvalidArgument;
  return harmless ? status : fail(std::move(status));
}

Status SqliteStore::add_frames(
    const Identity& identity,
    std::uint64_t schema_hash,
    std::uint64_t first_seq,
    const std::vector<SampleFrame>& frames) {
  MUSTER_ASSIGN_OR_RETURN(SessionState* const session, sessions_.find(identity));
  if (session->stream == nullptr) {
    return invalid_argument("frames come from ranks, not from rank -1");
  }
  MUSTER_ASSIGN_OR_RETURN(const SchemaInfo* const schema, schemas_.find(schema_hash));
  MUSTER_RETURN_IF_ERROR(FrameLog::check(*schema, first_seq, frames));
  Status status = begin();
  if (status.ok()) {
    status = write_frames(identity, *session, *schema, first_seq, frames);
  }
  return status.ok() ? status : fail(std::move(status));
}

Status SqliteStore::write_frames(
    const Identity& identity,
    SessionState& session,
    const SchemaInfo& schema,
    std::uint64_t first_seq,
    const std::vector<SampleFrame>& frames) {
  MUSTER_ASSIGN_OR_RETURN(
      const FrameLog::Added added,
      frames_.add(sessions_, session, FrameBatch{identity, schema, first_seq, frames}, ready_));
  counters_.frames += added.frames;
  counters_.samples += added.samples;
  counters_.duplicates += added.duplicates;
  return {};
}

Status SqliteStore::add_event(const Identity& identity, std::uint64_t seq, const Event& event) {
  MUSTER_ASSIGN_OR_RETURN(RunState* const run, sessions_.run(identity.run_id));
  if (Status status = begin(); !status.ok()) {
    return fail(std::move(status));
  }
  if (seq != 0) {
    MUSTER_ASSIGN_OR_RETURN(SessionState* const session, sessions_.find(identity));
    if (!sessions_.accept(*session, seq)) {
      ++counters_.duplicates;
      return {};
    }
  }
  Status status = insert_event(connection_, run->run_id, identity, event);
  if (!status.ok()) {
    return fail(std::move(status));
  }
  must_sync_ = true;
  ++counters_.events;
  return {};
}

void SqliteStore::note_heartbeat(
    const Identity& identity, std::int64_t step, std::int64_t dropped_count) {
  SessionState* const session = sessions_.find_if_open(identity);
  if (session == nullptr) {
    return;
  }
  if (Status status = begin(); !status.ok()) {
    static_cast<void>(fail(std::move(status)));
    return;
  }
  session->step = std::max(session->step, step);
  session->dropped_count = dropped_count;
  sessions_.touch(*session);
}

Expected<Command> SqliteStore::add_command(const std::string& run_id, Command command) {
  MUSTER_ASSIGN_OR_RETURN(RunState* const run, sessions_.run(run_id));
  command.collector_epoch = epoch_;
  Status status = begin();
  if (status.ok()) {
    status = insert_command(connection_, run->run_id, unix_ns(clock_.wall_now()), command);
  }
  if (!status.ok()) {
    return fail(std::move(status));
  }
  must_sync_ = true;
  return command;
}

Status SqliteStore::add_command_report(
    const Identity& identity, std::uint64_t seq, const CommandReport& report) {
  MUSTER_ASSIGN_OR_RETURN(SessionState* const session, sessions_.find(identity));
  if (Status status = begin(); !status.ok()) {
    return fail(std::move(status));
  }
  if (!sessions_.accept(*session, seq)) {
    ++counters_.duplicates;
    return {};
  }
  Status status = insert_command_report(connection_, session->run->run_id, identity, report);
  if (!status.ok()) {
    return fail(std::move(status));
  }
  must_sync_ = true;
  return {};
}

Expected<std::vector<Command>> SqliteStore::commands_for(
    const std::string& run_id, std::int64_t generation, std::uint64_t after_id) {
  MUSTER_ASSIGN_OR_RETURN(RunState* const run, sessions_.run(run_id));
  Status status = begin();
  bool fixed_now = false;
  if (status.ok()) {
    status = fix_command_list(connection_, run->run_id, generation, fixed_now);
  }
  if (!status.ok()) {
    return fail(std::move(status));
  }
  if (fixed_now) {
    // A rank may act on the list at once: it must not come out differently after a crash.
    must_sync_ = true;
    MUSTER_RETURN_IF_ERROR(commit());
  }
  return read_commands_for(connection_, run->run_id, generation, after_id);
}

Status SqliteStore::commit() {
  if (!lost_.ok()) {
    // What came after the failure goes the same way: nobody may have it acked by this call.
    undo();
    return std::exchange(lost_, Status{});
  }
  if (!connection_.in_transaction()) {
    return {};
  }
  if (Status status = write_commit(); !status.ok()) {
    Status reported = fail(std::move(status));
    lost_ = Status{};  // This call has said it.
    return reported;
  }
  must_sync_ = false;
  return {};
}

Status SqliteStore::write_commit() {
  MUSTER_RETURN_IF_ERROR(sessions_.flush());
  MUSTER_ASSIGN_OR_RETURN(
      StatementUse count,
      connection_.use("UPDATE meta SET value = value + 1 WHERE key = 'commit_count'"));
  MUSTER_RETURN_IF_ERROR(count->run());
  MUSTER_RETURN_IF_ERROR(connection_.execute("COMMIT"));
  // A power cut may take the last samples, whose ranks are gone with it too; not events or
  // commands.
  return must_sync_ ? connection_.sync_log() : Status{};
}

Expected<bool> SqliteStore::compact() {
  if (ready_.empty()) {
    return false;
  }
  Status status = begin();
  if (status.ok()) {
    status = compact_within_budget();
  }
  if (!status.ok()) {
    return fail(std::move(status));
  }
  return !ready_.empty();
}

Status SqliteStore::compact_within_budget() {
  std::int64_t samples = 0;
  while (!ready_.empty() && samples < kCompactSamplesMax) {
    const std::int64_t stream_id = *ready_.begin();
    MUSTER_ASSIGN_OR_RETURN(const std::int64_t done, compactor_.compact_one(stream_id));
    if (done == 0) {
      ready_.erase(stream_id);
    }
    samples += done;
  }
  return {};
}

}  // namespace muster::store
