// SPDX-License-Identifier: Apache-2.0
// The end of a rank, for programs and for people.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

namespace muster::launcher {

enum class ExitKind : std::uint8_t { kDone, kPreempted, kRollback, kNeverRestart, kFailed };

struct RankExit {
  int rank{0};
  pid_t pid{0};
  int wait_status{0};  // as waitpid gives it
};

[[nodiscard]] ExitKind kind_of(const RankExit& exit);

// By the signal, or with the code a shell gives to it.
[[nodiscard]] bool ended_by_sigterm(int wait_status);

// "rank 2 (pid 4711) was killed by signal 9 (Killed)", "rank 0 (pid 12) exited with code 3".
[[nodiscard]] std::string describe(const RankExit& exit);

}  // namespace muster::launcher
