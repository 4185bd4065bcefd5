// SPDX-License-Identifier: Apache-2.0
// One rank: a process group whose first process dies with the thread that started it. The rank has
// ended when the group is empty, for the program may be a script that does not `exec` the trainer.
// The launcher must be a subreaper (PR_SET_CHILD_SUBREAPER), or orphans are not seen to end.
//
// Not thread-safe; belongs to the launcher's thread.
#pragma once

#include "launcher/src/rank_exit.h"

#include <muster/common/expected.h>
#include <muster/common/file.h>

#include <optional>
#include <string>
#include <vector>

namespace muster::launcher {

struct SpawnRequest {
  int rank{0};
  std::string path;                      // of the executable
  std::vector<std::string> arguments;    // with the program's name first
  std::vector<std::string> environment;  // "NAME=value"
};

class RankProcess {
 public:
  // stdout and stderr go to `output`, stdin is empty. kNotFound, kInvalidArgument or kIoError,
  // naming the path, when it cannot be executed.
  [[nodiscard]] static Expected<RankProcess> start(const SpawnRequest& request, int output);

  // A process still alive is killed and reaped.
  ~RankProcess();
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;
  RankProcess(RankProcess&& other) noexcept;
  RankProcess& operator=(RankProcess&&) = delete;

  [[nodiscard]] int rank() const { return rank_; }

  [[nodiscard]] pid_t pid() const { return pid_; }

  [[nodiscard]] bool alive() const { return alive_; }

  // Readable once the first process has ended.
  [[nodiscard]] int pidfd() const { return pidfd_.get(); }

  // The first process has ended, others of its group have not.
  [[nodiscard]] bool lingers() const { return alive_ && ended_; }

  // How the first process has ended.
  [[nodiscard]] RankExit first_exit() const { return {rank_, pid_, wait_status_}; }

  // "upload (pid 12), tee (pid 13)": the group without its first process.
  [[nodiscard]] std::string leftovers() const;

  // To the whole group; nothing when the process has been reaped.
  void signal(int number) const;

  // The exit, once; nullopt while a process of the group runs. That of the first process, unless
  // it died of SIGTERM and left one that says more, such as a trainer that saved.
  [[nodiscard]] std::optional<RankExit> reap();

 private:
  void note_orphan(int wait_status);

  RankProcess(int rank, pid_t pid, FileDescriptor pidfd)
      : rank_(rank), pid_(pid), pidfd_(std::move(pidfd)) {}

  int rank_;
  pid_t pid_;
  FileDescriptor pidfd_;
  bool alive_{true};
  bool ended_{false};
  int wait_status_{0};
  std::optional<int> orphan_status_;
  bool orphan_killed_{false};  // one of them by a signal
};

// `program` itself when it has a slash, else the first executable of that name in PATH. kNotFound
// names what was looked for.
[[nodiscard]] Expected<std::string> find_program(const std::string& program);

}  // namespace muster::launcher
