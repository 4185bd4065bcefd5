// SPDX-License-Identifier: Apache-2.0
// The processes of one generation, and how they end.
//
// Not thread-safe; belongs to the launcher's thread.
#pragma once

#include "launcher/src/output_pump.h"
#include "launcher/src/rank_exit.h"
#include "launcher/src/rank_process.h"

#include <muster/common/clock.h>
#include <muster/launcher/options.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace muster::launcher {

struct TeamEnd {
  ExitKind kind{ExitKind::kDone};
  bool stopped{false};  // request_stop was called
  int rank{-1};         // that decided `kind`; -1 when none did
  std::string reason;
  MonotonicTime noticed_at;
};

class Team {
 public:
  // Calls `on_first_failure` for the first rank that failed, before the others are stopped.
  Team(
      const LauncherOptions& options,
      OutputPump& pump,
      const Clock& clock,
      std::function<void(const RankExit&)> on_first_failure);

  void add(RankProcess process) { processes_.push_back(std::move(process)); }

  [[nodiscard]] const std::vector<RankProcess>& processes() const { return processes_; }

  // Blocks until every process is dead. `stop_event` is an eventfd: 1 asks the ranks to save and
  // end, 2 or more kills them. `on_exit` is called for each process that has ended.
  [[nodiscard]] TeamEnd supervise(int stop_event, const std::function<void(int rank)>& on_exit);

 private:
  [[nodiscard]] bool any_alive() const;
  void wait_for_something(int stop_event);
  void handle_stop(int stop_event);
  void handle_exit(const RankExit& exit);
  void handle_deadline();
  // The first process of this rank has ended and has left others.
  void begin_to_linger(RankProcess& process);
  void end_what_lingers(const RankProcess& process, std::chrono::nanoseconds grace);
  [[nodiscard]] std::optional<Deadline> next_deadline() const;
  // SIGTERM now, SIGKILL after `grace`.
  void ask_to_end(std::chrono::nanoseconds grace);
  void kill_rest();

  const LauncherOptions& options_;
  OutputPump& pump_;
  const Clock& clock_;
  std::function<void(const RankExit&)> on_first_failure_;
  std::vector<RankProcess> processes_;
  TeamEnd end_;
  std::uint64_t stop_count_{0};
  std::optional<Deadline> kill_at_;
  std::map<int, Deadline> linger_until_;  // By rank.
  std::chrono::nanoseconds grace_{0};
};

}  // namespace muster::launcher
