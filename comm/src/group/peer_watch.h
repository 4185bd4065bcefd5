// SPDX-License-Identifier: Apache-2.0
// Liveness of the processes of peers.
//
// Thread-safe: sub-communicators and heaps of one rank may wait in separate threads.
#pragma once

#include <muster/common/file.h>
#include <muster/common/mutex.h>

#include <string>
#include <vector>

namespace muster::comm {

class PeerWatch {
 public:
  explicit PeerWatch(int size) : pidfds_(static_cast<std::size_t>(size)) {}

  // Ended processes count as dead before their parent has collected them. The first call for a rank
  // opens a handle on `pid`, so that a later process with the same number is not taken for it.
  [[nodiscard]] bool is_dead(int rank, int pid);

 private:
  Mutex mutex_;
  std::vector<FileDescriptor> pidfds_ MUSTER_GUARDED_BY(mutex_);
};

// Returns "running", "stopped" or "dead" according to /proc, for messages.
[[nodiscard]] std::string process_state(int pid);

}  // namespace muster::comm
