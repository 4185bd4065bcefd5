// SPDX-License-Identifier: Apache-2.0
// A small training job for tests: the real `muster` and `moe_lm` programs with a model whose steps
// take milliseconds. Paths of the programs come from the build.
#pragma once

#include "tests/integration/support/process.h"
#include "tests/support/scratch_folder.h"

#include <memory>
#include <string>
#include <vector>

namespace muster::test {

struct JobOptions {
  std::string folder;       // holds everything that the job writes
  std::string name{"job"};  // run id
  int ranks{4};
  int steps{24};
  int checkpoint_interval{6};
  std::string collector;              // "host:port"; without one if empty
  std::vector<std::string> trainer;   // further moe_lm flags
  std::vector<std::string> launcher;  // further `muster run` flags
};

// The command line of `muster run ... -- moe_lm ...`.
[[nodiscard]] std::vector<std::string> command_line(const JobOptions& options);

// Starts the job.
[[nodiscard]] std::unique_ptr<Process> launch(const JobOptions& options);

// Runs the job to its end and returns the exit code; aborts the test after two minutes.
[[nodiscard]] int run_to_end(const JobOptions& options);

// The final parameters that the job's ranks dumped, concatenated; empty when there are none.
[[nodiscard]] std::string parameters_of(const JobOptions& options);

// The pid of a rank, as `muster run` announced it for the first generation; 0 if it did not.
[[nodiscard]] pid_t announced_pid(const Process& launcher, int rank);

// The program files.
[[nodiscard]] std::string muster_program();
[[nodiscard]] std::string moe_lm_program();

// Writes enough English text for the small model into `folder` and returns its path.
[[nodiscard]] std::string write_sample_text(const std::string& folder);

// A `muster collector` on free ports with its addresses.
class CollectorProcess {
 public:
  // If `agent_port` is 0, the system selects a free port; a restart passes the old one. An empty
  // `policy` selects the built-in one, otherwise it is a file.
  explicit CollectorProcess(
      std::string database, int agent_port = 0, const std::string& policy = {});

  [[nodiscard]] const std::string& address() const { return address_; }  // agents

  [[nodiscard]] const std::string& url() const { return url_; }  // dashboard

  [[nodiscard]] int agent_port() const;

  [[nodiscard]] Process& process() { return *process_; }

 private:
  std::unique_ptr<Process> process_;
  std::string address_;
  std::string url_;
};

}  // namespace muster::test
