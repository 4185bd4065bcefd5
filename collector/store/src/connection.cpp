// SPDX-License-Identifier: Apache-2.0
#include "collector/store/src/connection.h"

#include <muster/common/file.h>
#include <muster/common/text.h>

#include <sqlite3.h>

#include <fcntl.h>

#include <utility>

namespace muster::store {

namespace fs = std::filesystem;

namespace {

StatusCode to_status_code(int code) {
  switch (code & 0xff) {
    case SQLITE_FULL:
    case SQLITE_NOMEM:
      return StatusCode::kResourceExhausted;
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return StatusCode::kUnavailable;
    case SQLITE_CORRUPT:
      return StatusCode::kDataLoss;
    case SQLITE_NOTADB:
      return StatusCode::kInvalidArgument;
    case SQLITE_IOERR:
    case SQLITE_CANTOPEN:
    case SQLITE_READONLY:
    case SQLITE_PERM:
      return StatusCode::kIoError;
    default:
      return StatusCode::kInternal;
  }
}

const char* remedy(int code) {
  switch (code & 0xff) {
    case SQLITE_FULL:
      return "; free disk space";
    case SQLITE_CORRUPT:
      return "; restore the file from a copy or start a new one";
    case SQLITE_NOTADB:
      return "; this is not a muster database, choose another file";
    case SQLITE_CANTOPEN:
    case SQLITE_READONLY:
    case SQLITE_PERM:
      return "; check that the folder exists and may be written";
    default:
      return "";
  }
}

constexpr int kBusyTimeoutMs = 10000;

// Names the file, what is wrong, the remedy where there is one, and what was being done.
Status make_error(sqlite3* handle, int code, std::string_view what) {
  const char* name = sqlite3_db_filename(handle, "main");
  const char* detail = handle != nullptr && sqlite3_extended_errcode(handle) == code
                           ? sqlite3_errmsg(handle)
                           : sqlite3_errstr(code);
  return Status{
      to_status_code(code),
      std::string{name == nullptr ? "database" : name} + ": " + detail + remedy(code) + " (" +
          std::string{what.substr(0, 80)} + ")"};
}

}  // namespace

void Connection::Close::operator()(sqlite3* handle) const {
  sqlite3_close_v2(handle);
}

namespace {

// The file as a URI that says that nobody writes it.
std::string immutable_uri(const fs::path& path) {
  std::string uri = "file:";
  for (const char letter : path.string()) {
    if (letter == '%' || letter == '?' || letter == '#') {
      uri += '%' + to_hex(std::as_bytes(std::span{&letter, 1}));
    } else {
      uri += letter;
    }
  }
  return uri + "?immutable=1";
}

}  // namespace

Status check_database_name(const fs::path& path) {
  std::error_code ignored;
  if (path.empty() || path == ":memory:") {
    return invalid_argument(
        "a database needs the name of a file, such as muster.db, got '", path, "'");
  }
  if (fs::is_directory(path, ignored)) {
    return invalid_argument(
        path, " is a folder; give the name of a file, such as ", (path / "muster.db").string());
  }
  if (fs::exists(path, ignored) && !fs::is_regular_file(path, ignored)) {
    return invalid_argument(path, " is not a regular file; a database needs one");
  }
  return {};
}

Expected<Connection> Connection::open(const fs::path& path, Mode mode) {
  MUSTER_RETURN_IF_ERROR(check_database_name(path));
  if (mode == Mode::kReader) {
    return open_reader(path);
  }
  // Only a new file: closing an old one would drop the locks that this process holds on it. SQLite
  // would make it 0644 under any umask; log and shared memory take over its mode.
  const FileDescriptor made{::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666)};
  return open_uri(path, path.string(), SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE);
}

Expected<Connection> Connection::open_reader(const fs::path& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) {
    return not_found(path.string() + ": no such database; has a collector been started with it?");
  }
  Expected<Connection> plain = prepare_reader(open_uri(path, path.string(), SQLITE_OPEN_READONLY));
  if (plain.status().code() != StatusCode::kIoError) {
    return plain;
  }
  // Reading a write-ahead log needs a file beside the database, which cannot be made here.
  const fs::path log = path.string() + "-wal";
  if (fs::exists(log, ignored) && fs::file_size(log, ignored) > 0) {
    return failed_precondition(
        path,
        " is on read-only storage together with ",
        log,
        ", which holds its newest data; copy both to a folder that can be written");
  }
  return prepare_reader(
      open_uri(path, immutable_uri(path), SQLITE_OPEN_READONLY | SQLITE_OPEN_URI));
}

Expected<Connection> Connection::prepare_reader(Expected<Connection> opened) {
  if (!opened) {
    return opened;
  }
  // SQLite before 3.51.3 can lose data when two connections checkpoint at once: only one may.
  sqlite3_wal_autocheckpoint(opened->handle_.get(), 0);
  sqlite3_db_config(opened->handle_.get(), SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, nullptr);
  MUSTER_RETURN_IF_ERROR(opened->execute("PRAGMA query_only = 1; PRAGMA cache_size = -8192;"));
  const Status readable = opened->integer("SELECT count(*) FROM sqlite_schema").status();
  return readable.ok() ? std::move(opened) : Expected<Connection>{readable};
}

Expected<Connection> Connection::open_uri(const fs::path& path, const std::string& uri, int flags) {
  sqlite3* handle = nullptr;
  const int code = sqlite3_open_v2(uri.c_str(), &handle, flags | SQLITE_OPEN_NOMUTEX, nullptr);
  Connection connection{handle};
  if (code != SQLITE_OK) {
    return Status{to_status_code(code), path.string() + ": " + sqlite3_errstr(code) + remedy(code)};
  }
  sqlite3_extended_result_codes(handle, 1);
  sqlite3_busy_timeout(handle, kBusyTimeoutMs);
  return connection;
}

Status Connection::execute(const char* sql) {
  const int code = sqlite3_exec(handle_.get(), sql, nullptr, nullptr, nullptr);
  return code == SQLITE_OK ? Status{} : make_error(handle_.get(), code, sql);
}

Expected<std::int64_t> Connection::integer(const char* sql) {
  MUSTER_ASSIGN_OR_RETURN(Statement statement, Statement::prepare(handle_.get(), sql));
  MUSTER_ASSIGN_OR_RETURN(const bool has_row, statement.step());
  if (!has_row) {
    return not_found(std::string{"no row for \""} + sql + "\"");
  }
  return statement.integer(0);
}

Expected<StatementUse> Connection::use(const char* sql) {
  const auto found = statements_.find(sql);
  if (found != statements_.end()) {
    return StatementUse{found->second};
  }
  MUSTER_ASSIGN_OR_RETURN(Statement statement, Statement::prepare(handle_.get(), sql));
  return StatementUse{statements_.emplace(sql, std::move(statement)).first->second};
}

bool Connection::in_transaction() const {
  return sqlite3_get_autocommit(handle_.get()) == 0;
}

std::int64_t Connection::last_insert_rowid() const {
  return sqlite3_last_insert_rowid(handle_.get());
}

std::int64_t Connection::changes() const {
  return sqlite3_changes64(handle_.get());
}

Status Connection::sync_log() {
  sqlite3_file* log = nullptr;
  const int found = sqlite3_file_control(handle_.get(), "main", SQLITE_FCNTL_JOURNAL_POINTER, &log);
  if (found != SQLITE_OK || log == nullptr || log->pMethods == nullptr) {
    return internal_error("the database has no write-ahead log to sync");
  }
  const int code = log->pMethods->xSync(log, SQLITE_SYNC_NORMAL);
  return code == SQLITE_OK ? Status{}
                           : make_error(handle_.get(), code, "sync of the write-ahead log");
}

void Statement::Finalize::operator()(sqlite3_stmt* handle) const {
  sqlite3_finalize(handle);
}

Expected<Statement> Statement::prepare(sqlite3* handle, const char* sql) {
  sqlite3_stmt* statement = nullptr;
  const int code =
      sqlite3_prepare_v3(handle, sql, -1, SQLITE_PREPARE_PERSISTENT, &statement, nullptr);
  if (code != SQLITE_OK) {
    return make_error(handle, code, sql);
  }
  return Statement{statement};
}

void Statement::note(int code) {
  if (code != SQLITE_OK && bind_error_ == SQLITE_OK) {
    bind_error_ = code;
  }
}

Statement& Statement::bind(int position, std::int64_t value) {
  note(sqlite3_bind_int64(handle_.get(), position, value));
  return *this;
}

Statement& Statement::bind(int position, double value) {
  note(sqlite3_bind_double(handle_.get(), position, value));
  return *this;
}

Statement& Statement::bind(int position, std::string_view text) {
  note(sqlite3_bind_text64(
      handle_.get(),
      position,
      text.data() == nullptr ? "" : text.data(),
      text.size(),
      SQLITE_TRANSIENT,
      SQLITE_UTF8));
  return *this;
}

Statement& Statement::bind(int position, std::span<const std::byte> bytes) {
  // A null pointer would bind NULL, not an empty blob.
  static constexpr std::byte kEmpty{};
  note(sqlite3_bind_blob64(
      handle_.get(),
      position,
      bytes.empty() ? &kEmpty : bytes.data(),
      bytes.size(),
      SQLITE_STATIC));
  return *this;
}

Statement& Statement::bind_null(int position) {
  note(sqlite3_bind_null(handle_.get(), position));
  return *this;
}

Expected<bool> Statement::step() {
  const int code = bind_error_ != SQLITE_OK ? bind_error_ : sqlite3_step(handle_.get());
  if (code == SQLITE_ROW || code == SQLITE_DONE) {
    return code == SQLITE_ROW;
  }
  return make_error(sqlite3_db_handle(handle_.get()), code, sqlite3_sql(handle_.get()));
}

Status Statement::run() {
  const Expected<bool> result = step();
  reset();
  return result.status();
}

void Statement::reset() {
  // Its result repeats the error that step() has already returned.
  sqlite3_reset(handle_.get());
  bind_error_ = SQLITE_OK;
}

std::int64_t Statement::integer(int column) const {
  return sqlite3_column_int64(handle_.get(), column);
}

double Statement::real(int column) const {
  return sqlite3_column_double(handle_.get(), column);
}

std::string Statement::text(int column) const {
  const auto* text = sqlite3_column_text(handle_.get(), column);
  const int size = sqlite3_column_bytes(handle_.get(), column);
  return text == nullptr ? std::string{}
                         : std::string(
                               static_cast<const char*>(static_cast<const void*>(text)),
                               static_cast<std::size_t>(size));
}

std::span<const std::byte> Statement::blob(int column) const {
  const void* data = sqlite3_column_blob(handle_.get(), column);
  const int size = sqlite3_column_bytes(handle_.get(), column);
  return {static_cast<const std::byte*>(data), static_cast<std::size_t>(size)};
}

bool Statement::is_null(int column) const {
  return sqlite3_column_type(handle_.get(), column) == SQLITE_NULL;
}

}  // namespace muster::store
