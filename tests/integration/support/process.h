// SPDX-License-Identifier: Apache-2.0
// A child process of a test. Collects its output, waits with a deadline and kills it by process id.
//
// Thread-safety: one test thread owns it; an internal thread collects the output.
#pragma once

#include <muster/common/clock.h>

#include <sys/types.h>

#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace muster::test {

class Process {
 public:
  // Starts argv[0] with standard output and error in one pipe. `environment` is added to the
  // environment of the test.
  explicit Process(
      std::vector<std::string> argv, const std::map<std::string, std::string>& environment = {});
  ~Process();  // Kills the process if it still runs.
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  Process(Process&&) = delete;
  Process& operator=(Process&&) = delete;

  [[nodiscard]] pid_t pid() const { return pid_; }

  void signal(int number) const;

  // The exit code, or 128 + signal; nullopt if the process still runs at the deadline.
  [[nodiscard]] std::optional<int> wait(Deadline deadline);

  // Waits until the output contains `text`; false when the process ended or the deadline passed.
  [[nodiscard]] bool wait_for_output(const std::string& text, Deadline deadline);

  // The first line of the output that contains `text`; empty if there is none.
  [[nodiscard]] std::string line_with(const std::string& text) const;

  // Everything printed so far.
  [[nodiscard]] std::string output() const;

 private:
  void read_output(int fd);

  pid_t pid_{-1};
  std::optional<int> exit_code_;
  std::thread reader_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::string output_;
  bool closed_{false};
};

}  // namespace muster::test
