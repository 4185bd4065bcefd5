// SPDX-License-Identifier: Apache-2.0
#include "agent/src/metrics/step_facts.h"

#include <algorithm>

namespace muster::agent {

void EpTimes::clear() {
  std::fill(waits.begin(), waits.end(), std::chrono::nanoseconds{0});
  plan = {};
  move = {};
  any = false;
}

void EpTimes::add(const parallel::EpEvent& event) {
  for (std::size_t peer = 0; peer < waits.size(); ++peer) {
    waits[peer] += std::chrono::nanoseconds{event.wait_ns[peer]};
  }
  plan += std::chrono::nanoseconds{event.plan_ns};
  move += std::chrono::nanoseconds{event.move_ns};
  any = true;
}

}  // namespace muster::agent
