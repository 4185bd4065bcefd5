// SPDX-License-Identifier: Apache-2.0
#include <muster/common/status.h>

#include <cerrno>
#include <system_error>

namespace muster {

std::string_view to_string(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return "ok";
    case StatusCode::kInvalidArgument:
      return "invalid argument";
    case StatusCode::kNotFound:
      return "not found";
    case StatusCode::kAlreadyExists:
      return "already exists";
    case StatusCode::kFailedPrecondition:
      return "failed precondition";
    case StatusCode::kUnavailable:
      return "unavailable";
    case StatusCode::kDeadlineExceeded:
      return "deadline exceeded";
    case StatusCode::kAborted:
      return "aborted";
    case StatusCode::kDataLoss:
      return "data loss";
    case StatusCode::kResourceExhausted:
      return "resource exhausted";
    case StatusCode::kIoError:
      return "i/o error";
    case StatusCode::kVersionMismatch:
      return "version mismatch";
    case StatusCode::kUnimplemented:
      return "unimplemented";
    case StatusCode::kInternal:
      return "internal error";
  }
  return "unknown";
}

Status Status::context(std::string_view what) const {
  if (ok()) {
    return *this;
  }
  return Status{code_, std::string{what} + ": " + message_};
}

std::string Status::to_string() const {
  if (ok()) {
    return "ok";
  }
  return std::string{muster::to_string(code_)} + ": " + message_;
}

Status invalid_argument(std::string message) {
  return Status{StatusCode::kInvalidArgument, std::move(message)};
}

Status not_found(std::string message) {
  return Status{StatusCode::kNotFound, std::move(message)};
}

Status already_exists(std::string message) {
  return Status{StatusCode::kAlreadyExists, std::move(message)};
}

Status failed_precondition(std::string message) {
  return Status{StatusCode::kFailedPrecondition, std::move(message)};
}

Status unavailable(std::string message) {
  return Status{StatusCode::kUnavailable, std::move(message)};
}

Status deadline_exceeded(std::string message) {
  return Status{StatusCode::kDeadlineExceeded, std::move(message)};
}

Status aborted(std::string message) {
  return Status{StatusCode::kAborted, std::move(message)};
}

Status data_loss(std::string message) {
  return Status{StatusCode::kDataLoss, std::move(message)};
}

Status resource_exhausted(std::string message) {
  return Status{StatusCode::kResourceExhausted, std::move(message)};
}

Status version_mismatch(std::string message) {
  return Status{StatusCode::kVersionMismatch, std::move(message)};
}

Status unimplemented(std::string message) {
  return Status{StatusCode::kUnimplemented, std::move(message)};
}

Status internal_error(std::string message) {
  return Status{StatusCode::kInternal, std::move(message)};
}

Status io_error(std::string_view what, int error) {
  const bool full = error == ENOSPC || error == EDQUOT;
  return Status{
      full ? StatusCode::kResourceExhausted : StatusCode::kIoError,
      std::string{what} + ": " + std::generic_category().message(error)};
}

}  // namespace muster
