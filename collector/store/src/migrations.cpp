// SPDX-License-Identifier: Apache-2.0
#include "collector/store/src/migrations.h"

#include <array>
#include <string>

namespace muster::store {

namespace {

constexpr const char* kVersion1 = R"sql(
CREATE TABLE meta (
  key   TEXT PRIMARY KEY,   -- "epoch": openings by a collector; "commit_count": commits with changes
  value INTEGER NOT NULL
) WITHOUT ROWID;
INSERT INTO meta VALUES ('epoch', 0), ('commit_count', 0);

-- One training run, over all its restarts.
CREATE TABLE runs (
  run_id            INTEGER PRIMARY KEY,
  name              TEXT NOT NULL UNIQUE,          -- the run_id of the agents
  world_size        INTEGER NOT NULL,              -- of the newest session
  started_unix_ns   INTEGER NOT NULL,              -- collector's clock at the first session
  last_seen_unix_ns INTEGER NOT NULL,              -- collector's clock at the newest message
  last_loss         REAL,                          -- newest train_loss_nats; NULL: none, or NaN
  sample_count      INTEGER NOT NULL DEFAULT 0     -- floats stored
);

-- One launch of the whole job.
CREATE TABLE generations (
  run_id          INTEGER NOT NULL REFERENCES runs,
  generation      INTEGER NOT NULL,
  started_unix_ns INTEGER NOT NULL,                -- collector's clock at its first session
  command_cut     INTEGER,                         -- newest command id when its list was fixed; NULL: not yet
  PRIMARY KEY (run_id, generation)
) WITHOUT ROWID;

-- One process: a rank in a generation. More than one incarnation may follow each other.
CREATE TABLE sessions (
  run_id            INTEGER NOT NULL REFERENCES runs,
  generation        INTEGER NOT NULL,
  rank              INTEGER NOT NULL,
  incarnation       TEXT NOT NULL,                 -- random per process start
  acked_seq         INTEGER NOT NULL DEFAULT 0,    -- highest seq stored
  step              INTEGER NOT NULL DEFAULT -1,   -- newest step heard of, by frame or heartbeat
  dropped_count     INTEGER NOT NULL DEFAULT 0,    -- frames the agent says it dropped, since its start
  last_seen_unix_ns INTEGER NOT NULL,              -- collector's clock at its newest message
  connected         INTEGER NOT NULL,              -- 1 between open_session and close_session
  PRIMARY KEY (run_id, generation, rank, incarnation)
) WITHOUT ROWID;

-- A registered layout of frames.
CREATE TABLE schemas (
  schema_id    INTEGER PRIMARY KEY,
  hash         INTEGER NOT NULL UNIQUE,            -- MetricSchema::hash, as a signed number
  metric_count INTEGER NOT NULL                    -- floats in each of its frames
);
CREATE TABLE schema_metrics (
  schema_id INTEGER NOT NULL REFERENCES schemas,
  position  INTEGER NOT NULL,                      -- of the float in a frame
  name      TEXT NOT NULL,
  unit      TEXT NOT NULL,
  kind      INTEGER NOT NULL,                      -- MetricKind
  scope     INTEGER NOT NULL,                      -- MetricScope
  layer     INTEGER NOT NULL,                      -- -1: does not apply
  idx       INTEGER NOT NULL,                      -- head or expert; -1: does not apply
  grp       TEXT NOT NULL,                         -- parameter group; empty: does not apply
  PRIMARY KEY (schema_id, position)
) WITHOUT ROWID;

-- One curve, over all generations of its run.
CREATE TABLE series (
  series_id INTEGER PRIMARY KEY,
  run_id    INTEGER NOT NULL REFERENCES runs,
  rank      INTEGER NOT NULL,                      -- -1: job scope, sent by rank 0
  name      TEXT NOT NULL,
  layer     INTEGER NOT NULL,
  idx       INTEGER NOT NULL,
  grp       TEXT NOT NULL,
  unit      TEXT NOT NULL,
  kind      INTEGER NOT NULL,
  sender    INTEGER NOT NULL,                      -- the rank whose frames carry it
  slot      INTEGER NOT NULL,                      -- counts the series of a sender from 0; < 2^20
  UNIQUE (run_id, rank, name, layer, idx, grp),
  UNIQUE (run_id, sender, slot)
);

-- A rank in a generation: who frames come from.
CREATE TABLE streams (
  stream_id  INTEGER PRIMARY KEY,                  -- < 2^28
  run_id     INTEGER NOT NULL REFERENCES runs,
  generation INTEGER NOT NULL,
  rank       INTEGER NOT NULL,
  step_first INTEGER NOT NULL DEFAULT -1,          -- lowest step stored; -1: none yet
  step_last  INTEGER NOT NULL DEFAULT -1,          -- highest step stored
  UNIQUE (run_id, generation, rank)
);

-- Step-major: what has arrived and is not transposed yet.
CREATE TABLE frames (
  frame_key    INTEGER PRIMARY KEY,                -- stream_id << 35 | step
  schema_id    INTEGER NOT NULL,
  wall_unix_ns INTEGER NOT NULL,                   -- sender's clock, for display
  samples      BLOB NOT NULL                       -- f32 little-endian, one per metric of the schema
);

-- 1024 steps of a stream that are transposed.
CREATE TABLE stretches (
  stretch_id   INTEGER PRIMARY KEY,                -- ascending in the order of transposing
  stream_id    INTEGER NOT NULL REFERENCES streams,
  chunk        INTEGER NOT NULL,                   -- step / 1024
  wall_unix_ns BLOB NOT NULL,                      -- 128 bytes of presence, then an i64 per present step
  UNIQUE (stream_id, chunk)
);

-- Series-major: 1024 steps of one series.
CREATE TABLE chunks (
  chunk_key INTEGER PRIMARY KEY,                   -- stretch_id << 20 | series.slot
  samples   BLOB NOT NULL                          -- chunk_codec.h
);

-- The pyramid over chunks: 16 summaries of 64 steps, and one of 4096.
CREATE TABLE pyramid_64 (
  chunk_key INTEGER PRIMARY KEY,                   -- as in chunks
  summaries BLOB NOT NULL                          -- 16 x 24 bytes, summary.h
);
CREATE TABLE pyramid_4096 (
  stream_id INTEGER NOT NULL,
  block     INTEGER NOT NULL,                      -- step / 4096
  slot      INTEGER NOT NULL,                      -- series.slot
  summary   BLOB NOT NULL,                         -- 24 bytes, summary.h
  PRIMARY KEY (stream_id, block, slot)
) WITHOUT ROWID;

CREATE TABLE events (
  event_id     INTEGER PRIMARY KEY,
  run_id       INTEGER NOT NULL REFERENCES runs,
  generation   INTEGER NOT NULL,
  rank         INTEGER NOT NULL,                   -- -1: the collector or launcher
  kind         TEXT NOT NULL,
  severity     INTEGER NOT NULL,                   -- Severity
  step         INTEGER NOT NULL,                   -- -1: not tied to a step
  wall_unix_ns INTEGER NOT NULL,
  reason       TEXT NOT NULL,
  inputs       BLOB NOT NULL,                      -- map_codec.h: text to f64
  labels       BLOB NOT NULL                       -- map_codec.h: text to text
);
CREATE INDEX events_by_run ON events (run_id, event_id);

CREATE TABLE commands (
  run_id          INTEGER NOT NULL REFERENCES runs,
  command_id      INTEGER NOT NULL,                -- from 1 in each run
  collector_epoch INTEGER NOT NULL,
  kind            INTEGER NOT NULL,                -- CommandKind
  argument        BLOB NOT NULL,                   -- f64: a REAL column would turn NaN into NULL
  expires_step    INTEGER NOT NULL,                -- -1: never
  reason          TEXT NOT NULL,
  issuer          TEXT NOT NULL,
  issued_unix_ns  INTEGER NOT NULL,
  PRIMARY KEY (run_id, command_id)
) WITHOUT ROWID;

-- Commands of earlier generations that a generation receives: fixed at its first question.
CREATE TABLE carried_commands (
  run_id     INTEGER NOT NULL REFERENCES runs,
  generation INTEGER NOT NULL,
  command_id INTEGER NOT NULL,
  PRIMARY KEY (run_id, generation, command_id)
) WITHOUT ROWID;

-- The furthest state that a rank has reported of a command.
CREATE TABLE command_reports (
  run_id           INTEGER NOT NULL REFERENCES runs,
  command_id       INTEGER NOT NULL,
  generation       INTEGER NOT NULL,
  rank             INTEGER NOT NULL,
  state            INTEGER NOT NULL,               -- CommandState
  step             INTEGER NOT NULL,
  parameter_digest INTEGER NOT NULL,               -- as a signed number; 0: not computed
  reason           TEXT NOT NULL,
  PRIMARY KEY (run_id, command_id, generation, rank)
) WITHOUT ROWID;
)sql";

constexpr const char* kVersion2 = R"sql(
-- Runs of one name that are not one run: which they are, and the name they asked for.
CREATE TABLE run_lines (
  run_id INTEGER PRIMARY KEY REFERENCES runs,
  base   TEXT NOT NULL,                            -- the run_id of the agents; empty: runs.name
  uid    TEXT NOT NULL                             -- Identity::run_uid; empty: of an older muster
);
)sql";

constexpr std::array kMigrations{kVersion1, kVersion2};

}  // namespace

std::int64_t schema_version_newest() {
  return std::int64_t{kMigrations.size()};
}

Status check_version(Connection& connection, const std::string& file) {
  MUSTER_ASSIGN_OR_RETURN(const std::int64_t version, connection.integer("PRAGMA user_version"));
  MUSTER_ASSIGN_OR_RETURN(const std::int64_t owner, connection.integer("PRAGMA application_id"));
  MUSTER_ASSIGN_OR_RETURN(
      const std::int64_t tables, connection.integer("SELECT count(*) FROM sqlite_schema"));
  if (owner != kApplicationId && (tables != 0 || owner != 0 || version != 0)) {
    return invalid_argument(
        file + ": is a SQLite file but not a muster database; choose another file");
  }
  if (version > schema_version_newest()) {
    return version_mismatch(
        file,
        ": has schema version ",
        version,
        ", this muster reads up to ",
        schema_version_newest(),
        "; use the newer muster that made it");
  }
  return {};
}

Status read_as_newest(Connection& connection) {
  MUSTER_ASSIGN_OR_RETURN(const std::int64_t version, connection.integer("PRAGMA user_version"));
  return version >= schema_version_newest()
             ? Status{}
             : connection.execute(
                   "PRAGMA query_only = 0; PRAGMA temp_store = MEMORY; CREATE TEMP TABLE run_lines "
                   "(run_id INTEGER PRIMARY KEY, base TEXT NOT NULL, uid TEXT NOT NULL); "
                   "PRAGMA query_only = 1;");
}

Status migrate(Connection& connection) {
  MUSTER_ASSIGN_OR_RETURN(std::int64_t version, connection.integer("PRAGMA user_version"));
  for (; version < schema_version_newest(); ++version) {
    MUSTER_RETURN_IF_ERROR(connection.execute("BEGIN IMMEDIATE"));
    const std::string mark = "PRAGMA application_id = " + std::to_string(kApplicationId) +
                             "; PRAGMA user_version = " + std::to_string(version + 1) + "; COMMIT";
    Status status = connection.execute(kMigrations[static_cast<std::size_t>(version)]);
    if (status.ok()) {
      status = connection.execute(mark.c_str());
    }
    if (!status.ok()) {
      // The transaction may already be gone; the first error is the one that matters.
      static_cast<void>(connection.execute("ROLLBACK"));
      return status.context("migration to schema version " + std::to_string(version + 1));
    }
  }
  return {};
}

}  // namespace muster::store
