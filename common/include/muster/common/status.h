// The result of an operation that can fail: a code for programs, a sentence for people.
//
// Thread-safety: a Status is a value; distinct objects may be used from distinct threads.
// The message names the thing that failed and, where there is one, the remedy.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace muster {

enum class StatusCode : std::uint8_t {
  kOk,
  kInvalidArgument,     // The caller passed something that can never work.
  kNotFound,            // A named file, run, parameter or peer does not exist.
  kAlreadyExists,       // A name, port or lock is taken.
  kFailedPrecondition,  // Right call, wrong state (not joined, wrong generation, wrong world size).
  kUnavailable,         // A peer, the collector or an optional library is not there; may come back.
  kDeadlineExceeded,    // A wait ended by its deadline.
  kAborted,             // The operation was cancelled for everybody (abort word, shutdown).
  kDataLoss,            // Bytes are damaged: a hash, a length or a manifest does not match.
  kResourceExhausted,   // Disk, memory, a queue or a budget is full.
  kIoError,             // The operating system refused a read, write, fsync or rename.
  kVersionMismatch,     // A peer or a file speaks another version of the protocol.
  kUnimplemented,       // This build or backend does not have it.
  kInternal,            // A bug of ours.
};

// "deadline exceeded", "data loss", ...
[[nodiscard]] std::string_view to_string(StatusCode code);

class [[nodiscard]] Status {
 public:
  // Success.
  Status() = default;

  // `code` must not be kOk.
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  [[nodiscard]] bool ok() const { return code_ == StatusCode::kOk; }

  [[nodiscard]] StatusCode code() const { return code_; }

  [[nodiscard]] const std::string& message() const { return message_; }

  // The same status with "`what`: " in front of the message; a success stays a success.
  [[nodiscard]] Status context(std::string_view what) const;

  // "ok", or "<code>: <message>".
  [[nodiscard]] std::string to_string() const;

 private:
  StatusCode code_{StatusCode::kOk};
  std::string message_;
};

[[nodiscard]] Status invalid_argument(std::string message);
[[nodiscard]] Status not_found(std::string message);
[[nodiscard]] Status already_exists(std::string message);
[[nodiscard]] Status failed_precondition(std::string message);
[[nodiscard]] Status unavailable(std::string message);
[[nodiscard]] Status deadline_exceeded(std::string message);
[[nodiscard]] Status aborted(std::string message);
[[nodiscard]] Status data_loss(std::string message);
[[nodiscard]] Status resource_exhausted(std::string message);
[[nodiscard]] Status version_mismatch(std::string message);
[[nodiscard]] Status unimplemented(std::string message);
[[nodiscard]] Status internal_error(std::string message);

// kIoError, or kResourceExhausted for ENOSPC and EDQUOT: "<what>: <strerror(error)>".
[[nodiscard]] Status io_error(std::string_view what, int error);

}  // namespace muster

// Leaves the enclosing function with the Status of `expression` unless it is a success.
#define MUSTER_RETURN_IF_ERROR(expression)                                      \
  do {                                                                          \
    if (::muster::Status muster_status_ = (expression); !muster_status_.ok()) { \
      return muster_status_;                                                    \
    }                                                                           \
  } while (false)
