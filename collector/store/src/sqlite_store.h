// SPDX-License-Identifier: Apache-2.0
// Store on one SQLite file: transactions, failure handling and counters around the tables.
//
// After any failed write the whole transaction is undone, sessions included, so that memory never
// runs ahead of the file.
#pragma once

#include "collector/store/src/compactor.h"
#include "collector/store/src/connection.h"
#include "collector/store/src/frame_log.h"
#include "collector/store/src/run_lines.h"
#include "collector/store/src/schema_table.h"
#include "collector/store/src/session_table.h"

#include <muster/common/file.h>
#include <muster/store/store.h>

#include <set>

namespace muster::store {

class SqliteStore final : public Store {
 public:
  SqliteStore(FileLock lock, Connection connection, const Clock& clock);
  ~SqliteStore() override;
  SqliteStore(const SqliteStore&) = delete;
  SqliteStore& operator=(const SqliteStore&) = delete;
  SqliteStore(SqliteStore&&) = delete;
  SqliteStore& operator=(SqliteStore&&) = delete;

  // Reads what the file left to be compacted, and moves the epoch on.
  [[nodiscard]] Status start();

  [[nodiscard]] std::int64_t epoch() const override { return epoch_; }

  [[nodiscard]] Expected<std::uint64_t> open_session(
      const Identity& identity, std::int32_t world_size) override;

  [[nodiscard]] Expected<std::vector<RunLine>> lines() override {
    return read_run_lines(connection_);
  }

  [[nodiscard]] Expected<bool> keep_line(const RunLine& line) override;

  [[nodiscard]] Expected<std::string> find_line(const std::string& run_id) override {
    return resolve_run(connection_, run_id);
  }

  void close_session(const Identity& identity) override;
  [[nodiscard]] Status register_schema(
      const Identity& identity, const MetricSchema& schema) override;
  [[nodiscard]] Status add_frames(
      const Identity& identity,
      std::uint64_t schema_hash,
      std::uint64_t first_seq,
      const std::vector<SampleFrame>& frames) override;
  [[nodiscard]] Status add_event(
      const Identity& identity, std::uint64_t seq, const Event& event) override;
  void note_heartbeat(
      const Identity& identity, std::int64_t step, std::int64_t dropped_count) override;
  [[nodiscard]] Expected<Command> add_command(const std::string& run_id, Command command) override;
  [[nodiscard]] Status add_command_report(
      const Identity& identity, std::uint64_t seq, const CommandReport& report) override;
  [[nodiscard]] Expected<std::vector<Command>> commands_for(
      const std::string& run_id, std::int64_t generation, std::uint64_t after_id) override;
  [[nodiscard]] Status commit() override;
  [[nodiscard]] Expected<bool> compact() override;

  [[nodiscard]] Counters counters() const override { return counters_; }

 private:
  [[nodiscard]] Status begin();
  [[nodiscard]] Status write_commit();
  void undo();
  // Undoes the transaction after a failed write and hands the error on.
  [[nodiscard]] Status fail(const Status& error);
  [[nodiscard]] Status write_frames(
      const Identity& identity,
      SessionState& session,
      const SchemaInfo& schema,
      std::uint64_t first_seq,
      const std::vector<SampleFrame>& frames);
  [[nodiscard]] Status compact_within_budget();

  FileLock lock_;  // Released last.
  Connection connection_;
  const Clock& clock_;
  SessionTable sessions_;
  SchemaTable schemas_;
  FrameLog frames_;
  Compactor compactor_;
  std::set<std::int64_t> ready_;  // Streams with a stretch to transpose.
  std::int64_t epoch_{0};
  Counters counters_;
  bool must_sync_{false};  // The transaction holds more than samples.
  Status lost_;            // Why the last transaction was undone, until the next commit.
};

}  // namespace muster::store
