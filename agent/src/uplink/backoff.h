// SPDX-License-Identifier: Apache-2.0
// Exponential backoff with full jitter, so that the ranks of a job do not reconnect at the same
// instant. Not thread-safe.
#pragma once

#include <muster/common/random.h>

#include <algorithm>
#include <chrono>

namespace muster::agent {

class Backoff {
 public:
  // Attempt n (from 0) waits uniformly in [0, min(max, min * 2^n)).
  Backoff(std::chrono::milliseconds min, std::chrono::milliseconds max, Random random)
      : min_(min), max_(max), random_(random), ceiling_(min) {}

  [[nodiscard]] std::chrono::nanoseconds next() {
    const std::chrono::duration<double, std::nano> ceiling{ceiling_};
    ceiling_ = std::min(max_, ceiling_ * 2);
    return std::chrono::duration_cast<std::chrono::nanoseconds>(ceiling * random_.uniform());
  }

  // Call it after a success.
  void reset() { ceiling_ = min_; }

 private:
  std::chrono::milliseconds min_;
  std::chrono::milliseconds max_;
  Random random_;
  std::chrono::milliseconds ceiling_;
};

}  // namespace muster::agent
