// SPDX-License-Identifier: Apache-2.0
// Waits for the work of another thread or process.
#pragma once

#include <muster/common/clock.h>

#include <chrono>
#include <thread>

namespace muster::test {

// Polls `condition` until it returns true; false if the deadline passes first, which happens only
// when something is broken.
template <typename Condition>
[[nodiscard]] bool eventually(
    Condition condition, Deadline deadline = Deadline::after(std::chrono::minutes{2})) {
  while (!condition()) {
    if (deadline.expired()) {
      return false;
    }
    std::this_thread::yield();
  }
  return true;
}

}  // namespace muster::test
