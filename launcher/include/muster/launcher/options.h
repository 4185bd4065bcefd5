// SPDX-License-Identifier: Apache-2.0
// Options of a launcher.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace muster::launcher {

struct LauncherOptions {
  std::vector<std::string> program;  // path or name in PATH, and arguments
  int process_count{1};              // ranks, all on this host
  std::string run_id;
  std::filesystem::path checkpoint_root;
  std::filesystem::path log_directory;    // default: <checkpoint_root>/<run_id>/logs
  std::filesystem::path spool_directory;  // default: <checkpoint_root>/<run_id>/spool
  std::string collector;                  // "host:port"; if empty, ranks run without a collector
  std::filesystem::path token_file;       // if empty, no token is sent

  // Restarts that count, at most `restarts_max` within any `restart_window`.
  int restarts_max{10};
  std::chrono::nanoseconds restart_window{std::chrono::hours{1}};
  // Restarts in a row without a newer committed step, after which the launcher gives up.
  int no_progress_restarts_max{3};

  // Time from SIGTERM to SIGKILL: when ranks are asked to save, and after a rank died, when the
  // rest has nothing left to save.
  std::chrono::nanoseconds grace{std::chrono::seconds{30}};
  std::chrono::nanoseconds failure_grace{std::chrono::seconds{2}};

  // Wait before a restart, from the second failure in a row on; doubled each time, with jitter.
  std::chrono::nanoseconds backoff_first{std::chrono::seconds{1}};
  std::chrono::nanoseconds backoff_max{std::chrono::minutes{1}};
  std::uint64_t jitter_seed{0};

  int console_fd{1};                               // -1 shows nothing
  std::map<std::string, std::string> environment;  // more variables for every rank
};

// Exit codes of ranks and of `muster run`.
inline constexpr int kExitDone = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitPreempted = 75;  // saved; do not count, start again later
inline constexpr int kExitRollback = 85;   // restart, counted
inline constexpr int kExitNeverRestart = 93;

}  // namespace muster::launcher
