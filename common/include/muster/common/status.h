// SPDX-License-Identifier: Apache-2.0
// The result of an operation that can fail: a code for programs, a sentence for people.
//
// The message names the thing that failed and, where there is one, the remedy. Each factory takes
// one string, or parts that it joins as concat does (text.h):
//   return invalid_argument("head_dim must be between 8 and 256, got ", head_dim);
//
// Thread-safety: a Status is a value; distinct objects may be used from distinct threads.
#pragma once

#include <muster/common/text.h>

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
  kAborted,             // The operation was cancelled on all ranks (abort word, shutdown).
  kDataLoss,            // Bytes are damaged: a hash, a length or a manifest does not match.
  kResourceExhausted,   // Disk, memory, a queue or a budget is full.
  kIoError,             // The operating system refused a read, write, fsync or rename.
  kVersionMismatch,     // A peer or a file has another version of the protocol.
  kUnimplemented,       // This build or backend does not have it.
  kInternal,            // A bug of ours.
};

// Returns "deadline exceeded", "data loss", ...
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

  // Returns the same status with "`what`: " in front of the message; a success stays a success.
  [[nodiscard]] Status context(std::string_view what) const;

  // Returns "ok" or "<code>: <message>".
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

template <typename... Parts>
[[nodiscard]] Status invalid_argument(const Parts&... parts) {
  return Status{StatusCode::kInvalidArgument, concat(parts...)};
}

// Returns invalid_argument(parts...) unless `holds`.
template <typename... Parts>
[[nodiscard]] Status require(bool holds, const Parts&... parts) {
  return holds ? Status{} : invalid_argument(parts...);
}

template <typename... Parts>
[[nodiscard]] Status not_found(const Parts&... parts) {
  return Status{StatusCode::kNotFound, concat(parts...)};
}

template <typename... Parts>
[[nodiscard]] Status already_exists(const Parts&... parts) {
  return Status{StatusCode::kAlreadyExists, concat(parts...)};
}

template <typename... Parts>
[[nodiscard]] Status failed_precondition(const Parts&... parts) {
  return Status{StatusCode::kFailedPrecondition, concat(parts...)};
}

template <typename... Parts>
[[nodiscard]] Status unavailable(const Parts&... parts) {
  return Status{StatusCode::kUnavailable, concat(parts...)};
}

template <typename... Parts>
[[nodiscard]] Status deadline_exceeded(const Parts&... parts) {
  return Status{StatusCode::kDeadlineExceeded, concat(parts...)};
}

template <typename... Parts>
[[nodiscard]] Status aborted(const Parts&... parts) {
  return Status{StatusCode::kAborted, concat(parts...)};
}

template <typename... Parts>
[[nodiscard]] Status data_loss(const Parts&... parts) {
  return Status{StatusCode::kDataLoss, concat(parts...)};
}

template <typename... Parts>
[[nodiscard]] Status resource_exhausted(const Parts&... parts) {
  return Status{StatusCode::kResourceExhausted, concat(parts...)};
}

template <typename... Parts>
[[nodiscard]] Status version_mismatch(const Parts&... parts) {
  return Status{StatusCode::kVersionMismatch, concat(parts...)};
}

template <typename... Parts>
[[nodiscard]] Status unimplemented(const Parts&... parts) {
  return Status{StatusCode::kUnimplemented, concat(parts...)};
}

template <typename... Parts>
[[nodiscard]] Status internal_error(const Parts&... parts) {
  return Status{StatusCode::kInternal, concat(parts...)};
}

// Returns kIoError, or kResourceExhausted for ENOSPC and EDQUOT: "<what>: <strerror(error)>".
[[nodiscard]] Status io_error(std::string_view what, int error);

}  // namespace muster

// Returns the Status of `expression` from the enclosing function unless it is a success.
#define MUSTER_RETURN_IF_ERROR(expression)                                      \
  do {                                                                          \
    if (::muster::Status muster_status_ = (expression); !muster_status_.ok()) { \
      return muster_status_;                                                    \
    }                                                                           \
  } while (false)
