// SPDX-License-Identifier: Apache-2.0
// Limits and times of the service. Not settings of a user: tests shorten them.
#pragma once

#include <muster/wire/messages.h>

#include <chrono>
#include <cstddef>

namespace muster::collector {

struct ServiceOptions {
  // Writer. A commit follows the first uncommitted task by at most the interval; answers that a
  // peer is waiting for (welcome, command accepted) are committed at once.
  std::chrono::milliseconds commit_interval{200};
  std::size_t commit_tasks_max{4096};
  std::size_t queue_tasks_max{4096};  // Between I/O and writer; full stops reading.
  std::size_t queue_bytes_max{std::size_t{64} << 20};

  // Sessions, judged on the injected clock.
  std::chrono::milliseconds hello_timeout{5'000};
  std::chrono::milliseconds idle_timeout{wire::kIdleTimeout};
  std::chrono::milliseconds heartbeat_interval{wire::kHeartbeatInterval};
  std::chrono::milliseconds write_timeout{10'000};
  std::chrono::milliseconds linger_timeout{1'000};  // For a peer to read its Goodbye.
  std::size_t outbox_bytes_max{std::size_t{4} << 20};
  std::size_t sessions_max{8192};

  // A rank whose connection ended without a Goodbye is lost after this, unless it came back.
  std::chrono::milliseconds rank_lost_after{1'000};

  // Interval between checks of the limits above, in real time.
  std::chrono::milliseconds tick_interval{50};
};

}  // namespace muster::collector
