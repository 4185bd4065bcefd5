// SPDX-License-Identifier: Apache-2.0
// Deadlines of calls that a test expects to succeed.
#pragma once

#include <muster/common/clock.h>

#include <chrono>

namespace muster::test {

// Long enough for a machine under heavy load. A call reaches it only when something is broken, so a
// test must not wait for it to pass.
[[nodiscard]] inline Deadline soon() {
  return Deadline::after(std::chrono::seconds{60});
}

}  // namespace muster::test
