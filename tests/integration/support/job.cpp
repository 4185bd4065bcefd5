// SPDX-License-Identifier: Apache-2.0
#include "tests/integration/support/job.h"

#include <muster/common/check.h>
#include <muster/common/file.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace muster::test {

namespace fs = std::filesystem;

namespace {

constexpr auto kPatience = std::chrono::seconds{120};

// The text between `before` and the next blank in the first line that contains `before`.
std::string word_after(const std::string& text, const std::string& before) {
  const std::size_t at = text.find(before);
  if (at == std::string::npos) {
    return {};
  }
  const std::size_t begin = at + before.size();
  return text.substr(begin, text.find_first_of(" \n/", begin) - begin);
}

}  // namespace

std::string muster_program() {
  return MUSTER_PROGRAM;
}

std::string moe_lm_program() {
  return MOE_LM_PROGRAM;
}

std::string write_sample_text(const std::string& folder) {
  const std::string path = folder + "/text.txt";
  std::ofstream file(path);
  for (int line = 0; line < 400; ++line) {
    file << "Line " << line << ": the " << (line % 7 == 0 ? "white whale" : "grey sea") << " rose "
         << line * line % 101 << " fathoms under the keel, and the watch sang out.\n";
  }
  return path;
}

std::vector<std::string> command_line(const JobOptions& options) {
  fs::create_directories(options.folder);
  const std::string text = options.folder + "/text.txt";
  std::vector<std::string> line{
      muster_program(),
      "run",
      "--nproc-per-node",
      std::to_string(options.ranks),
      "--run-id",
      options.name,
      "--checkpoint-root",
      options.folder + "/checkpoints",
      "--log-dir",
      options.folder + "/logs",
      "--spool",
      options.folder + "/spool"};
  if (!options.collector.empty()) {
    line.insert(line.end(), {"--collector", options.collector});
  }
  line.insert(line.end(), options.launcher.begin(), options.launcher.end());
  const std::vector<std::string> trainer{
      "--",
      moe_lm_program(),
      "--data",
      fs::exists(text) ? text : write_sample_text(options.folder),
      "--steps",
      std::to_string(options.steps),
      "--checkpoint-interval",
      std::to_string(options.checkpoint_interval),
      "--batch",
      "8",
      "--seq",
      "32",
      "--layers",
      "2",
      "--d-model",
      "32",
      "--heads",
      "2",
      "--experts",
      "4",
      "--seed",
      "7",
      "--dump-params",
      options.folder + "/params"};
  line.insert(line.end(), trainer.begin(), trainer.end());
  line.insert(line.end(), options.trainer.begin(), options.trainer.end());
  return line;
}

std::unique_ptr<Process> launch(const JobOptions& options) {
  return std::make_unique<Process>(command_line(options));
}

int run_to_end(const JobOptions& options) {
  const auto job = launch(options);
  const auto code = job->wait(Deadline::after(kPatience));
  MUSTER_CHECK(code.has_value(), "the job did not end: " + job->output());
  if (*code != 0) {
    std::fputs(job->output().c_str(), stderr);
  }
  return *code;
}

std::string parameters_of(const JobOptions& options) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(options.folder)) {
    if (entry.path().filename().string().starts_with("params")) {
      files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  std::string all;
  for (const fs::path& file : files) {
    const auto content = read_file(file);
    MUSTER_CHECK(content.has_value(), content.status().to_string());
    all += file.filename().string() + "\n" + *content;
  }
  return all;
}

pid_t announced_pid(const Process& launcher, int rank) {
  // "[muster] ranks 0..3 run as pids 4711 4712 4713 4714"
  const std::string line = launcher.line_with("run as pids ");
  std::istringstream pids(line.substr(std::min(line.find("pids "), line.size())));
  std::string word;
  pids >> word;
  pid_t pid = 0;
  for (int i = 0; i <= rank && pids; ++i) {
    pids >> pid;
  }
  return pids ? pid : 0;
}

CollectorProcess::CollectorProcess(
    std::string database, int agent_port, const std::string& policy) {
  std::vector<std::string> line{
      muster_program(),
      "collector",
      "--db",
      std::move(database),
      "--listen",
      "127.0.0.1:" + std::to_string(agent_port),
      "--http",
      "127.0.0.1:0"};
  if (!policy.empty()) {
    line.insert(line.end(), {"--policy", policy});
  }
  process_ = std::make_unique<Process>(std::move(line));
  MUSTER_CHECK(
      process_->wait_for_output("http://", Deadline::after(kPatience)), process_->output());
  url_ = "http://" + word_after(process_->output(), "http://");
  address_ = word_after(process_->output(), "collector  ");
}

int CollectorProcess::agent_port() const {
  return std::stoi(address_.substr(address_.rfind(':') + 1));
}

}  // namespace muster::test
