// SPDX-License-Identifier: Apache-2.0
// The write side of the store: one SQLite file, one writer.
//
// Thread-safety: one thread (the collector's writer thread) owns a Store. Only its connection
// checkpoints the WAL. Everything added between two commits is one transaction; what was committed
// survives a crash of the process. A power cut may take the last commits that held samples only;
// one that held events, commands, reports or a new epoch is on the disk when commit() returns.
//
// Errors. kInvalidArgument, kNotFound and kFailedPrecondition change nothing. After any other error
// the transaction is undone and every session is closed: the caller closes its connections, acks
// nothing, and the agents send again. The next commit() returns the error once more.
#pragma once

#include <muster/common/clock.h>
#include <muster/common/expected.h>
#include <muster/common/ids.h>
#include <muster/common/telemetry.h>
#include <muster/store/query.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace muster::store {

// A run as stored. Two runs of one name are two lines.
struct RunLine {
  std::string name;       // Of the stored run.
  std::string base;       // The name it asked for, where that is another one; else empty.
  std::string uid;        // Identity::run_uid; empty: unknown.
  Generation generation;  // Newest.
};

class Store {
 public:
  // Creates or opens the file, takes its exclusive lock (a second collector on it is
  // kAlreadyExists), applies migrations, increments the persisted collector epoch.
  // kVersionMismatch, and nothing changed, for a file of a newer muster.
  [[nodiscard]] static Expected<std::unique_ptr<Store>> open(
      const std::filesystem::path& database, const Clock& clock);

  Store() = default;
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;
  Store(Store&&) = delete;
  Store& operator=(Store&&) = delete;
  virtual ~Store() = default;

  [[nodiscard]] virtual std::int64_t epoch() const = 0;

  // Registers a process. Returns the highest seq stored for this identity, or 0. Rank -1 is a
  // process that is not a rank, such as the launcher; it can send events but no frames.
  [[nodiscard]] virtual Expected<std::uint64_t> open_session(
      const Identity& identity, std::int32_t world_size) = 0;

  // All lines, oldest first. A store that keeps none takes every name for one run.
  [[nodiscard]] virtual Expected<std::vector<RunLine>> lines() { return std::vector<RunLine>{}; }

  // Keeps what tells this run, which has a session, from others. True if it was not kept yet.
  [[nodiscard]] virtual Expected<bool> keep_line(const RunLine& /*line*/) { return false; }

  // The name of the line that a person means by `run_id`. kNotFound for none.
  [[nodiscard]] virtual Expected<std::string> find_line(const std::string& run_id) {
    return run_id;
  }

  virtual void close_session(const Identity& identity) = 0;

  // Idempotent by hash.
  [[nodiscard]] virtual Status register_schema(
      const Identity& identity, const MetricSchema& schema) = 0;

  // kFailedPrecondition without an open session and a registered schema. kInvalidArgument, and the
  // whole batch is rejected, for a frame that does not fit its schema or a step outside [0, 2^35).
  // Frames with seq <= the highest stored for the identity are ignored and counted as duplicates; a
  // frame for a (run, generation, rank, step) that exists already is ignored as well.
  [[nodiscard]] virtual Status add_frames(
      const Identity& identity,
      std::uint64_t schema_hash,
      std::uint64_t first_seq,
      const std::vector<SampleFrame>& frames) = 0;

  // With `seq` 0 the event is the collector's and not deduplicated. `identity.rank` is -1 for a
  // process that is not a rank.
  [[nodiscard]] virtual Status add_event(
      const Identity& identity, std::uint64_t seq, const Event& event) = 0;

  virtual void note_heartbeat(
      const Identity& identity, std::int64_t step, std::int64_t dropped_count) = 0;

  // Assigns the next id of the run and the epoch. kNotFound for a run that never had a session.
  // Commit before the command is sent.
  [[nodiscard]] virtual Expected<Command> add_command(
      const std::string& run_id, Command command) = 0;
  [[nodiscard]] virtual Status add_command_report(
      const Identity& identity, std::uint64_t seq, const CommandReport& report) = 0;
  // Returns the commands that every rank of `generation` must receive, ascending by id: those not
  // finished by an earlier generation. The first call for a generation fixes the answer and
  // commits; later calls only add newer commands, so all ranks of a generation get the same list. A
  // command is finished if a rank of an earlier generation reported it as applied, rejected or
  // expired before that first call.
  [[nodiscard]] virtual Expected<std::vector<Command>> commands_for(
      const std::string& run_id, std::int64_t generation, std::uint64_t after_id) = 0;

  // Makes everything since the last call durable; then the seqs may be acked.
  [[nodiscard]] virtual Status commit() = 0;

  // Transposes complete 1024-step stretches of frames into chunks with their min/max/last pyramid,
  // a bounded amount per call. Returns true if there is more to do.
  [[nodiscard]] virtual Expected<bool> compact() = 0;

  struct Counters {
    std::int64_t frames{0};
    std::int64_t samples{0};
    std::int64_t duplicates{0};
    std::int64_t events{0};
  };

  [[nodiscard]] virtual Counters counters() const = 0;  // Since open.
};

}  // namespace muster::store
