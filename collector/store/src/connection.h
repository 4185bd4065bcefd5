// SPDX-License-Identifier: Apache-2.0
// SQLite behind Status: a connection and its prepared statements.
//
// Not thread-safe: connections are opened without SQLite's own mutex, one thread uses each.
#pragma once

#include <muster/common/expected.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>

struct sqlite3;
struct sqlite3_stmt;

namespace muster::store {

// A prepared statement. Bind everything, then step until it returns false, then reset.
//
// The first error sticks until `reset` and is returned by `step`, so that binds need no checks.
// Text and blobs read from a row live until the next step or reset.
class Statement {
 public:
  Statement() = default;

  [[nodiscard]] static Expected<Statement> prepare(sqlite3* handle, const char* sql);

  // Positions count from 1, as SQLite does.
  Statement& bind(int position, std::int64_t value);
  Statement& bind(int position, double value);
  Statement& bind(int position, std::string_view text);
  // Not copied: `bytes` must live until `reset`.
  Statement& bind(int position, std::span<const std::byte> bytes);
  Statement& bind_null(int position);

  // Returns true if there is a row to read, false at the end.
  [[nodiscard]] Expected<bool> step();
  // For statements without rows: steps once and resets.
  [[nodiscard]] Status run();
  void reset();

  // Columns count from 0.
  [[nodiscard]] std::int64_t integer(int column) const;
  [[nodiscard]] double real(int column) const;
  [[nodiscard]] std::string text(int column) const;
  [[nodiscard]] std::span<const std::byte> blob(int column) const;
  [[nodiscard]] bool is_null(int column) const;

 private:
  struct Finalize {
    void operator()(sqlite3_stmt* handle) const;
  };

  explicit Statement(sqlite3_stmt* handle) : handle_(handle) {}

  void note(int code);

  std::unique_ptr<sqlite3_stmt, Finalize> handle_;
  int bind_error_{0};
};

// A statement lent by a connection; reset when it goes out of scope, so that no early return leaves
// a read transaction open.
class StatementUse {
 public:
  explicit StatementUse(Statement& statement) : statement_(&statement) {}

  ~StatementUse() {
    if (statement_ != nullptr) {
      statement_->reset();
    }
  }

  StatementUse(const StatementUse&) = delete;
  StatementUse& operator=(const StatementUse&) = delete;

  StatementUse(StatementUse&& other) noexcept
      : statement_(std::exchange(other.statement_, nullptr)) {}

  StatementUse& operator=(StatementUse&&) = delete;

  Statement* operator->() { return statement_; }

 private:
  Statement* statement_;
};

// kInvalidArgument for names that SQLite takes for something else, or fails on without saying why.
[[nodiscard]] Status check_database_name(const std::filesystem::path& path);

class Connection {
 public:
  enum class Mode { kWriter, kReader };

  // A writer creates the file. A reader never checkpoints, neither while running nor on close.
  // A reader of read-only storage takes the file for immutable. kInvalidArgument for a name that is
  // not that of a file.
  // kNotFound for a reader without a file, kInvalidArgument for a file that is not a database.
  [[nodiscard]] static Expected<Connection> open(const std::filesystem::path& path, Mode mode);

  // Runs one or more statements without results.
  [[nodiscard]] Status execute(const char* sql);
  // The first column of the first row; kNotFound when there is none.
  [[nodiscard]] Expected<std::int64_t> integer(const char* sql);

  // Prepared once and kept. `sql` must be a literal: its address is the key. Do not lend the same
  // statement twice at a time.
  [[nodiscard]] Expected<StatementUse> use(const char* sql);

  [[nodiscard]] bool in_transaction() const;
  [[nodiscard]] std::int64_t last_insert_rowid() const;
  [[nodiscard]] std::int64_t changes() const;

  // Forces what is in the write-ahead log onto the disk.
  [[nodiscard]] Status sync_log();

 private:
  struct Close {
    void operator()(sqlite3* handle) const;
  };

  explicit Connection(sqlite3* handle) : handle_(handle) {}

  [[nodiscard]] static Expected<Connection> open_reader(const std::filesystem::path& path);
  [[nodiscard]] static Expected<Connection> prepare_reader(Expected<Connection> opened);
  [[nodiscard]] static Expected<Connection> open_uri(
      const std::filesystem::path& path, const std::string& uri, int flags);

  std::unique_ptr<sqlite3, Close> handle_;
  std::unordered_map<const char*, Statement> statements_;  // Finalized before the handle closes.
};

}  // namespace muster::store
