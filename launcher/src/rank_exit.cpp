// SPDX-License-Identifier: Apache-2.0
#include "launcher/src/rank_exit.h"

#include <muster/common/text.h>
#include <muster/launcher/options.h>

#include <sys/wait.h>

#include <csignal>
#include <cstring>

namespace muster::launcher {

ExitKind kind_of(const RankExit& exit) {
  if (!WIFEXITED(exit.wait_status)) {
    return ExitKind::kFailed;
  }
  switch (WEXITSTATUS(exit.wait_status)) {
    case kExitDone:
      return ExitKind::kDone;
    case kExitPreempted:
      return ExitKind::kPreempted;
    case kExitRollback:
      return ExitKind::kRollback;
    case kExitNeverRestart:
      return ExitKind::kNeverRestart;
    default:
      return ExitKind::kFailed;
  }
}

bool ended_by_sigterm(int wait_status) {
  return (WIFSIGNALED(wait_status) && WTERMSIG(wait_status) == SIGTERM) ||
         (WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 128 + SIGTERM);
}

std::string describe(const RankExit& exit) {
  const std::string who =
      "rank " + std::to_string(exit.rank) + " (pid " + std::to_string(exit.pid) + ") ";
  if (WIFSIGNALED(exit.wait_status)) {
    const int signal = WTERMSIG(exit.wait_status);
    const char* meaning = ::sigdescr_np(signal);  // null for real-time signals
    return who + "was killed by signal " + std::to_string(signal) +
           (meaning == nullptr ? "" : concat(" (", meaning, ')'));
  }
  const int code = WEXITSTATUS(exit.wait_status);
  switch (kind_of(exit)) {
    case ExitKind::kPreempted:
      return who + "saved and exited with code 75 (preempted)";
    case ExitKind::kRollback:
      return who + "exited with code 85 (rollback requested)";
    case ExitKind::kNeverRestart:
      return who + "exited with code 93 (never restart)";
    case ExitKind::kDone:
    case ExitKind::kFailed:
      break;
  }
  return who + "exited with code " + std::to_string(code);
}

}  // namespace muster::launcher
