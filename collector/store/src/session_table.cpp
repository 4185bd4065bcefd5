// SPDX-License-Identifier: Apache-2.0
#include "collector/store/src/session_table.h"

#include "collector/store/src/keys.h"

namespace muster::store {

namespace {

std::string describe(const Identity& identity) {
  return "run " + identity.run_id + " generation " + std::to_string(identity.generation.value()) +
         " rank " + std::to_string(identity.rank.value()) + " incarnation " + identity.incarnation;
}

}  // namespace

SessionTable::SessionKey SessionTable::key_of(const Identity& identity) {
  return {
      identity.run_id, identity.generation.value(), identity.rank.value(), identity.incarnation};
}

Expected<SessionState*> SessionTable::open(const Identity& identity, std::int32_t world_size) {
  if (identity.run_id.empty() || identity.generation.value() < 0 || identity.rank.value() < -1) {
    return invalid_argument(
        "a session needs a run id, a generation >= 0 and a rank >= -1, not " + describe(identity));
  }
  MUSTER_ASSIGN_OR_RETURN(RunState* const run, open_run(identity, world_size));
  MUSTER_ASSIGN_OR_RETURN(
      StatementUse generation,
      connection_.use("INSERT OR IGNORE INTO generations (run_id, generation, started_unix_ns) "
                      "VALUES (?, ?, ?)"));
  generation->bind(1, run->run_id).bind(2, identity.generation.value()).bind(3, wall_now());
  MUSTER_RETURN_IF_ERROR(generation->run());

  const auto found = sessions_.find(key_of(identity));
  if (found != sessions_.end()) {
    touch(found->second);
    return &found->second;
  }
  SessionState session;
  session.run = run;
  if (identity.rank.value() >= 0) {
    MUSTER_ASSIGN_OR_RETURN(session.stream, open_stream(identity, run->run_id));
  }
  MUSTER_RETURN_IF_ERROR(read_session(identity, run->run_id, session));
  SessionState& kept = sessions_[key_of(identity)] = session;
  touch(kept);
  return &kept;
}

Expected<RunState*> SessionTable::open_run(const Identity& identity, std::int32_t world_size) {
  MUSTER_ASSIGN_OR_RETURN(
      StatementUse insert,
      connection_.use("INSERT OR IGNORE INTO runs (name, world_size, started_unix_ns, "
                      "last_seen_unix_ns) VALUES (?, 0, ?, ?)"));
  insert->bind(1, identity.run_id).bind(2, wall_now()).bind(3, wall_now());
  MUSTER_RETURN_IF_ERROR(insert->run());
  MUSTER_ASSIGN_OR_RETURN(RunState* const state, run(identity.run_id));
  if (world_size > 0) {
    state->world_size = world_size;
  }
  return state;
}

Expected<RunState*> SessionTable::run(const std::string& run_id) {
  const auto found = runs_.find(run_id);
  if (found != runs_.end()) {
    return &found->second;
  }
  MUSTER_ASSIGN_OR_RETURN(
      StatementUse select,
      connection_.use("SELECT run_id, world_size, last_seen_unix_ns FROM runs WHERE name = ?"));
  select->bind(1, run_id);
  MUSTER_ASSIGN_OR_RETURN(const bool has_row, select->step());
  if (!has_row) {
    return not_found("run \"" + run_id + "\" is not known to this collector");
  }
  RunState& state = runs_[run_id];
  state.run_id = select->integer(0);
  state.world_size = static_cast<std::int32_t>(select->integer(1));
  state.last_seen_unix_ns = select->integer(2);
  return &state;
}

Expected<StreamState*> SessionTable::open_stream(const Identity& identity, std::int64_t run_id) {
  StreamKey key{identity.run_id, identity.generation.value(), identity.rank.value()};
  const auto found = streams_.find(key);
  if (found != streams_.end()) {
    return &found->second;
  }
  MUSTER_ASSIGN_OR_RETURN(
      StatementUse insert,
      connection_.use("INSERT OR IGNORE INTO streams (run_id, generation, rank) VALUES (?, ?, ?)"));
  insert->bind(1, run_id).bind(2, identity.generation.value());
  insert->bind(3, std::int64_t{identity.rank.value()});
  MUSTER_RETURN_IF_ERROR(insert->run());
  MUSTER_ASSIGN_OR_RETURN(
      StatementUse select,
      connection_.use("SELECT stream_id, step_first, step_last FROM streams "
                      "WHERE run_id = ? AND generation = ? AND rank = ?"));
  select->bind(1, run_id).bind(2, identity.generation.value());
  select->bind(3, std::int64_t{identity.rank.value()});
  MUSTER_ASSIGN_OR_RETURN(const bool has_row, select->step());
  if (!has_row) {
    return internal_error("the stream of " + describe(identity) + " was not made");
  }
  if (select->integer(0) >= kStreamLimit) {
    return resource_exhausted("the database has no room for more ranks; start a new one");
  }
  StreamState& stream = streams_[std::move(key)];
  stream.stream_id = select->integer(0);
  stream.step_first = select->integer(1);
  stream.step_last = select->integer(2);
  return &stream;
}

Status SessionTable::read_session(
    const Identity& identity, std::int64_t run_id, SessionState& session) {
  MUSTER_ASSIGN_OR_RETURN(
      StatementUse upsert,
      connection_.use("INSERT INTO sessions (run_id, generation, rank, incarnation, "
                      "last_seen_unix_ns, connected) VALUES (?, ?, ?, ?, ?, 1) "
                      "ON CONFLICT DO UPDATE SET connected = 1 "
                      "RETURNING acked_seq, step, dropped_count"));
  upsert->bind(1, run_id).bind(2, identity.generation.value());
  upsert->bind(3, std::int64_t{identity.rank.value()}).bind(4, identity.incarnation);
  upsert->bind(5, wall_now());
  MUSTER_ASSIGN_OR_RETURN(const bool has_row, upsert->step());
  if (!has_row) {
    return internal_error("the session of " + describe(identity) + " was not made");
  }
  session.acked_seq = static_cast<std::uint64_t>(upsert->integer(0));
  session.step = upsert->integer(1);
  session.dropped_count = upsert->integer(2);
  // RETURNING rows come before the statement has ended: let it end.
  return upsert->step().status();
}

Status SessionTable::close(const Identity& identity) {
  const auto found = sessions_.find(key_of(identity));
  if (found == sessions_.end()) {
    return {};
  }
  SessionState& session = found->second;
  MUSTER_RETURN_IF_ERROR(flush_session(found->first, session));
  MUSTER_ASSIGN_OR_RETURN(
      StatementUse update,
      connection_.use("UPDATE sessions SET connected = 0 WHERE run_id = ? AND generation = ? "
                      "AND rank = ? AND incarnation = ?"));
  update->bind(1, session.run->run_id).bind(2, identity.generation.value());
  update->bind(3, std::int64_t{identity.rank.value()}).bind(4, identity.incarnation);
  MUSTER_RETURN_IF_ERROR(update->run());
  StreamState* const stream = session.stream;
  sessions_.erase(found);
  const auto next = sessions_.lower_bound(
      SessionKey{identity.run_id, identity.generation.value(), identity.rank.value(), ""});
  const bool shared = next != sessions_.end() && next->second.stream == stream;
  if (stream != nullptr && !shared) {
    MUSTER_RETURN_IF_ERROR(flush_stream(*stream));
    streams_.erase(StreamKey{identity.run_id, identity.generation.value(), identity.rank.value()});
  }
  return {};
}

SessionState* SessionTable::find_if_open(const Identity& identity) {
  const auto found = sessions_.find(key_of(identity));
  return found == sessions_.end() ? nullptr : &found->second;
}

Expected<SessionState*> SessionTable::find(const Identity& identity) {
  SessionState* const session = find_if_open(identity);
  if (session == nullptr) {
    return failed_precondition(describe(identity) + " has no open session");
  }
  return session;
}

bool SessionTable::accept(SessionState& session, std::uint64_t seq) {
  touch(session);
  if (seq <= session.acked_seq) {
    return false;
  }
  session.acked_seq = seq;
  return true;
}

void SessionTable::touch(SessionState& session) {
  session.last_seen_unix_ns = wall_now();
  session.dirty = true;
  session.run->last_seen_unix_ns = session.last_seen_unix_ns;
  session.run->dirty = true;
}

Status SessionTable::flush() {
  for (auto& [key, session] : sessions_) {
    MUSTER_RETURN_IF_ERROR(flush_session(key, session));
  }
  for (auto& [key, stream] : streams_) {
    MUSTER_RETURN_IF_ERROR(flush_stream(stream));
  }
  for (auto& [name, run] : runs_) {
    MUSTER_RETURN_IF_ERROR(flush_run(run));
  }
  return {};
}

Status SessionTable::flush_session(const SessionKey& key, SessionState& session) {
  if (!session.dirty) {
    return {};
  }
  MUSTER_ASSIGN_OR_RETURN(
      StatementUse update,
      connection_.use("UPDATE sessions SET acked_seq = ?, step = ?, dropped_count = ?, "
                      "last_seen_unix_ns = ? WHERE run_id = ? AND generation = ? AND rank = ? "
                      "AND incarnation = ?"));
  update->bind(1, static_cast<std::int64_t>(session.acked_seq)).bind(2, session.step);
  update->bind(3, session.dropped_count).bind(4, session.last_seen_unix_ns);
  update->bind(5, session.run->run_id).bind(6, std::get<1>(key));
  update->bind(7, std::int64_t{std::get<2>(key)}).bind(8, std::get<3>(key));
  session.dirty = false;
  return update->run();
}

Status SessionTable::flush_stream(StreamState& stream) {
  if (!stream.dirty) {
    return {};
  }
  MUSTER_ASSIGN_OR_RETURN(
      StatementUse update,
      connection_.use("UPDATE streams SET step_first = ?, step_last = ? WHERE stream_id = ?"));
  update->bind(1, stream.step_first).bind(2, stream.step_last).bind(3, stream.stream_id);
  stream.dirty = false;
  return update->run();
}

Status SessionTable::flush_run(RunState& run) {
  if (!run.dirty) {
    return {};
  }
  MUSTER_ASSIGN_OR_RETURN(
      StatementUse update,
      connection_.use("UPDATE runs SET world_size = ?1, last_seen_unix_ns = ?2, "
                      "sample_count = sample_count + ?3, "
                      "last_loss = CASE WHEN ?4 THEN ?5 ELSE last_loss END WHERE run_id = ?6"));
  update->bind(1, std::int64_t{run.world_size}).bind(2, run.last_seen_unix_ns);
  update->bind(3, run.sample_count_added).bind(4, std::int64_t{run.last_loss ? 1 : 0});
  update->bind(5, static_cast<double>(run.last_loss.value_or(0.0F))).bind(6, run.run_id);
  run.sample_count_added = 0;
  run.last_loss.reset();
  run.dirty = false;
  return update->run();
}

void SessionTable::clear() {
  sessions_.clear();
  streams_.clear();
  runs_.clear();
}

}  // namespace muster::store
