// SPDX-License-Identifier: Apache-2.0
// Runs the built `muster` executable and keeps what it said.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace muster::cli::testing {

struct ProgramResult {
  int exit_code{-1};  // 128 + n when ended by signal n
  std::string out;
  std::string err;
};

// A running `muster` with its two output streams in pipes.
class Program {
 public:
  explicit Program(const std::vector<std::string>& arguments);
  // Kills it when it was not waited for.
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  Program(Program&&) = delete;
  Program& operator=(Program&&) = delete;

  void signal(int number) const;

  // Blocks until stdout has `line` in it; false when the program ends without.
  bool wait_for_output(const std::string& part);

  [[nodiscard]] ProgramResult wait();

 private:
  bool read_more();

  pid_t pid_{0};
  int out_{-1};
  int err_{-1};
  ProgramResult result_;
};

[[nodiscard]] ProgramResult muster(const std::vector<std::string>& arguments);

}  // namespace muster::cli::testing
