// A small training job for tests: the real `muster` and `moe_lm` programs on a model that makes a
// step in milliseconds. Paths of the programs come from the build.
#pragma once

#include "tests/integration/support/process.h"

#include <memory>
#include <string>
#include <vector>

namespace muster::test {

struct JobOptions {
  std::string folder;       // everything the job writes lies under it
  std::string name{"job"};  // run id
  int ranks{4};
  int steps{24};
  int checkpoint_interval{6};
  std::string collector;              // "host:port"; empty: none
  std::vector<std::string> trainer;   // further moe_lm flags
  std::vector<std::string> launcher;  // further `muster run` flags
};

// The command line of `muster run ... -- moe_lm ...`.
[[nodiscard]] std::vector<std::string> command_line(const JobOptions& options);

// Starts it.
[[nodiscard]] std::unique_ptr<Process> launch(const JobOptions& options);

// Runs it to its end; the exit code, or a failed check after two minutes.
[[nodiscard]] int run_to_end(const JobOptions& options);

// The final parameters that the job's ranks dumped, concatenated; empty when there are none.
[[nodiscard]] std::string parameters_of(const JobOptions& options);

// The pid of a rank, as `muster run` announced it for the first generation; 0 when it did not.
[[nodiscard]] pid_t announced_pid(const Process& launcher, int rank);

// The program files.
[[nodiscard]] std::string muster_program();
[[nodiscard]] std::string moe_lm_program();

// English text enough for the small model, written into `folder`; its path.
[[nodiscard]] std::string write_sample_text(const std::string& folder);

// A `muster collector` on free ports with its addresses.
class CollectorProcess {
 public:
  // `agent_port` 0 picks a free one; a restart reuses the old.
  explicit CollectorProcess(std::string database, int agent_port = 0);

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
