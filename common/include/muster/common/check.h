// SPDX-License-Identifier: Apache-2.0
// MUSTER_CHECK: for what only a bug of ours can break; never for data from a peer, file or user.
//
// A failed check throws CheckFailure, so that the agent can detach and leave the training run
// alone; processes that own themselves (collector, launcher) let it end them.
#pragma once

#include <stdexcept>
#include <string>

namespace muster {

class CheckFailure : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

// Throws CheckFailure("<file>:<line>: check failed: <expression>: <message>").
[[noreturn]] void fail_check(
    const char* expression, const char* file, int line, const std::string& message);

}  // namespace muster

// Always on. `message` is evaluated only on failure.
#define MUSTER_CHECK(condition, message)                               \
  do {                                                                 \
    if (!(condition)) [[unlikely]] {                                   \
      ::muster::fail_check(#condition, __FILE__, __LINE__, (message)); \
    }                                                                  \
  } while (false)
