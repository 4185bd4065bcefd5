// SPDX-License-Identifier: Apache-2.0
// Starts the ranks of a run on this host, watches them, and restarts them when one dies.
//
// Thread-safety: `run` blocks in the caller's thread, which is the ranks' parent: they are killed
// when that thread ends. `snapshot` and `request_stop` may be called from any thread,
// `request_stop` from a signal handler too.
//
// Invariants: (1) a generation's number is durable before its first process exists. (2) No process
// of a generation starts before every process of the one before is dead. (3) All ranks of a
// generation resume from the same checkpoint.
#pragma once

#include <muster/common/clock.h>
#include <muster/common/expected.h>
#include <muster/common/ids.h>
#include <muster/launcher/event_sink.h>
#include <muster/launcher/options.h>

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace muster::launcher {

// One failure and the start that followed it.
struct RestartRecord {
  Generation failed;
  Generation next;  // 0 until it has started
  int rank{-1};     // the first that failed
  std::string reason;
  MonotonicTime killed_at;  // when the launcher saw it
  MonotonicTime first_new_process_at;
  std::filesystem::path resume_from;
};

struct LauncherSnapshot {
  Generation generation;
  bool running{false};      // ranks of `generation` are up
  std::vector<pid_t> pids;  // [process_count]; 0 for a rank that has ended
  std::filesystem::path resume_from;
  std::vector<RestartRecord> restarts;
  int exit_code{-1};   // -1 until `run` has returned
  std::string reason;  // why it ended
};

class Launcher {
 public:
  // Checks the options, finds the program and takes the run's launcher lock: kAlreadyExists names
  // the process that already runs it. `sink` may be null; `clock` must outlive the launcher.
  [[nodiscard]] static Expected<std::unique_ptr<Launcher>> create(
      LauncherOptions options,
      std::unique_ptr<EventSink> sink,
      const Clock& clock = Clock::system());

  Launcher() = default;
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;
  Launcher(Launcher&&) = delete;
  Launcher& operator=(Launcher&&) = delete;
  virtual ~Launcher() = default;

  // Runs the job to its end, once. Returns the exit code: 0 done, 75 preempted and saved, 93 never
  // restart, 1 otherwise. Returns an error if a generation could not be started at all.
  [[nodiscard]] virtual Expected<int> run() = 0;

  // First call: SIGTERM to all ranks, which save and end. Second call: SIGKILL.
  virtual void request_stop() = 0;

  [[nodiscard]] virtual LauncherSnapshot snapshot() const = 0;

  // Returns the options with defaults filled in.
  [[nodiscard]] virtual const LauncherOptions& options() const = 0;
};

}  // namespace muster::launcher
