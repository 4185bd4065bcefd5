// SPDX-License-Identifier: Apache-2.0
#include "cli/demo/service.h"

#include <muster/common/clock.h>

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <vector>

namespace muster::demo {

namespace {

constexpr auto kStartTimeout = std::chrono::seconds{20};
constexpr int kStopTimeoutMs = 10'000;
constexpr int kPollMs = 20;

// True if the process ended within the timeout.
bool ended(pid_t pid, int timeout_ms) {
  const FileDescriptor fd{static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))};
  pollfd entry{.fd = fd.get(), .events = POLLIN, .revents = 0};
  return !fd.valid() || ::poll(&entry, 1, timeout_ms) > 0;
}

// The text after `label` up to the end of its line; empty when it is not there or not complete.
std::string rest_of_line(const std::string& text, const std::string& label) {
  const std::size_t at = text.find(label);
  const std::size_t end = at == std::string::npos ? at : text.find('\n', at);
  if (end == std::string::npos) {
    return {};
  }
  std::string rest = text.substr(at + label.size(), end - at - label.size());
  rest.erase(0, rest.find_first_not_of(' '));
  return rest;
}

}  // namespace

Expected<std::unique_ptr<CollectorService>> CollectorService::start(
    const std::filesystem::path& database,
    const std::string& http,
    const std::filesystem::path& log) {
  std::unique_ptr<CollectorService> service{new CollectorService};
  MUSTER_RETURN_IF_ERROR(service->spawn(database, http, log));
  MUSTER_RETURN_IF_ERROR(service->await_addresses(log));
  return service;
}

Status CollectorService::spawn(
    const std::filesystem::path& database,
    const std::string& http,
    const std::filesystem::path& log) {
  const FileDescriptor output{::open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)};
  if (!output.valid()) {
    return io_error(log.string(), errno);
  }
  std::vector<std::string> arguments{
      "muster", "collector", "--db", database.string(), "--listen", "127.0.0.1:0", "--http", http};
  std::vector<char*> argv;
  argv.reserve(arguments.size() + 1);
  for (std::string& argument : arguments) {
    argv.push_back(argument.data());
  }
  argv.push_back(nullptr);
  pid_ = ::fork();
  if (pid_ < 0) {
    return io_error("fork", errno);
  }
  if (pid_ == 0) {
    // A separate process group: Ctrl-C reaches only the demo, which then ends everything in order.
    ::setpgid(0, 0);
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    ::dup2(output.get(), STDOUT_FILENO);
    ::dup2(output.get(), STDERR_FILENO);
    ::execv("/proc/self/exe", argv.data());
    ::_exit(127);
  }
  return {};
}

Status CollectorService::await_addresses(const std::filesystem::path& log) {
  const Deadline deadline = Deadline::after(kStartTimeout);
  while (true) {
    const bool gone = ended(pid_, kPollMs);
    MUSTER_ASSIGN_OR_RETURN(const std::string text, read_file(log));
    agent_address_ = rest_of_line(text, "collector  ");
    url_ = rest_of_line(text, "dashboard  ");
    if (!agent_address_.empty() && !url_.empty()) {
      return {};
    }
    if (gone || deadline.expired()) {
      return unavailable("the collector did not start; it printed:\n" + text);
    }
  }
}

CollectorService::~CollectorService() {
  stop();
}

void CollectorService::stop() {
  if (pid_ <= 0) {
    return;
  }
  ::kill(pid_, SIGTERM);
  if (!ended(pid_, kStopTimeoutMs)) {
    ::kill(pid_, SIGKILL);
  }
  ::waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

}  // namespace muster::demo
