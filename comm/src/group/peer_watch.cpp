// SPDX-License-Identifier: Apache-2.0
#include "comm/src/group/peer_watch.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

namespace muster::comm {

bool PeerWatch::is_dead(int rank, int pid) {
  const MutexLock lock{mutex_};
  FileDescriptor& pidfd = pidfds_[static_cast<std::size_t>(rank)];
  if (!pidfd.valid()) {
    pidfd = FileDescriptor{static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))};
    if (!pidfd.valid()) {
      // Kernels before 5.3 have no pidfd; kill() reports a death only after the parent has waited.
      return errno == ESRCH || ::kill(pid, 0) != 0;
    }
  }
  pollfd poll_entry{pidfd.get(), POLLIN, 0};
  return ::poll(&poll_entry, 1, 0) > 0;  // Readable once the process has ended.
}

std::string process_state(int pid) {
  const auto stat = read_file(concat("/proc/", pid, "/stat"), 4096);
  if (!stat) {
    return "dead";
  }
  // "<pid> (<name>) <state> ...": the name may hold anything, so search from the end.
  const std::size_t name_end = stat->rfind(')');
  if (name_end == std::string::npos || name_end + 2 >= stat->size()) {
    return "running";
  }
  switch ((*stat)[name_end + 2]) {
    case 'T':
    case 't':
      return "stopped";
    case 'Z':
    case 'X':
      return "dead";
    default:
      return "running";
  }
}

}  // namespace muster::comm
