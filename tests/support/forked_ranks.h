// SPDX-License-Identifier: Apache-2.0
// Runs a function in several child processes, as the ranks of a job on one host, and collects their
// results.
//
// Use it from a single-threaded test process: only the calling thread exists in a child. A child
// leaves by _exit, so it runs no destructors of the parent's objects and no test framework code.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace muster::test {

struct RankResult {
  bool ended{false};   // False if it still ran at the time limit and was killed.
  int exit_code{-1};   // -1 if it did not exit by itself.
  int signal{0};       // The signal that ended it, or 0.
  std::string report;  // Return value of the body, or the text of its exception.
  std::chrono::nanoseconds ended_after{0};  // Since the fork.
};

// The text is the report of the rank; an exception gives exit code 1. "" is the usual success.
using RankBody = std::function<std::string(int rank)>;

class ForkedRanks {
 public:
  // Forks `size` children that run body(0) ... body(size - 1).
  ForkedRanks(int size, const RankBody& body);

  // Kills, by process id, every child that still runs.
  ~ForkedRanks();
  ForkedRanks(const ForkedRanks&) = delete;
  ForkedRanks& operator=(const ForkedRanks&) = delete;
  ForkedRanks(ForkedRanks&&) = delete;
  ForkedRanks& operator=(ForkedRanks&&) = delete;

  [[nodiscard]] pid_t pid(int rank) const;

  // Sends `signal` to one rank: SIGKILL, SIGSTOP, SIGCONT, SIGTERM.
  void send_signal(int rank, int signal);

  // Waits until each rank in `ranks` has called report_ready, or `limit` has passed; whether all
  // have.
  [[nodiscard]] bool wait_ready(const std::vector<int>& ranks, std::chrono::nanoseconds limit);

  // Waits until each rank in `ranks` has ended, at most `limit`; whether all have.
  [[nodiscard]] bool wait_ended(const std::vector<int>& ranks, std::chrono::nanoseconds limit);

  // Called in a child: reports to the parent that the body has reached the point of interest.
  static void report_ready();

  // Waits until all children have ended, at most `limit`; kills the rest.
  [[nodiscard]] std::vector<RankResult> wait(std::chrono::nanoseconds limit);

 private:
  struct Child {
    pid_t pid{-1};
    int report_fd{-1};  // The parent's end of the pipe; -1 once the child has closed its own.
    bool is_ready{false};
    bool reaped{false};
    RankResult result;
  };

  void read_available(Child& child);
  bool pump(std::chrono::steady_clock::time_point until);
  void reap(Child& child);

  std::chrono::steady_clock::time_point started_at_;
  std::vector<Child> children_;
};

// Forks, waits and returns the reports; adds a test failure for every rank that did not end by
// itself with exit code 0 within `limit`.
[[nodiscard]] std::vector<std::string> run_ranks(
    int size, const RankBody& body, std::chrono::nanoseconds limit = std::chrono::minutes{2});

}  // namespace muster::test
