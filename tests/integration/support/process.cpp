// SPDX-License-Identifier: Apache-2.0
#include "tests/integration/support/process.h"

#include <muster/common/check.h>

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>

namespace muster::test {

namespace {

int poll_timeout_ms(Deadline deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline.remaining());
  return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 600'000));
}

[[noreturn]] void run_child(
    std::vector<std::string>& argv,
    const std::map<std::string, std::string>& environment,
    int out) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::dup2(out, STDOUT_FILENO);
  ::dup2(out, STDERR_FILENO);
  for (const auto& [name, value] : environment) {
    ::setenv(name.c_str(), value.c_str(), 1);  // NOLINT(concurrency-mt-unsafe): after fork
  }
  std::vector<char*> arguments;
  for (std::string& argument : argv) {
    arguments.push_back(argument.data());
  }
  arguments.push_back(nullptr);
  ::execvp(arguments[0], arguments.data());
  ::_exit(127);
}

}  // namespace

Process::Process(
    std::vector<std::string> argv, const std::map<std::string, std::string>& environment) {
  std::array<int, 2> ends{};
  MUSTER_CHECK(::pipe2(ends.data(), O_CLOEXEC) == 0, "pipe");
  pid_ = ::fork();
  MUSTER_CHECK(pid_ >= 0, "fork");
  if (pid_ == 0) {
    run_child(argv, environment, ends[1]);
  }
  ::close(ends[1]);
  reader_ = std::thread([this, fd = ends[0]] { read_output(fd); });
}

Process::~Process() {
  if (!exit_code_) {
    ::kill(pid_, SIGKILL);
    (void)wait(Deadline::after(std::chrono::seconds{30}));
  }
  reader_.join();
}

void Process::signal(int number) const {
  ::kill(pid_, number);
}

std::optional<int> Process::wait(Deadline deadline) {
  if (exit_code_) {
    return exit_code_;
  }
  const int fd = static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0));
  MUSTER_CHECK(fd >= 0, "pidfd_open");
  pollfd entry{.fd = fd, .events = POLLIN, .revents = 0};
  const int ready = ::poll(&entry, 1, poll_timeout_ms(deadline));
  ::close(fd);
  if (ready <= 0) {
    return std::nullopt;
  }
  int status = 0;
  MUSTER_CHECK(::waitpid(pid_, &status, 0) == pid_, "waitpid");
  exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  // The last words may still be in the pipe; a grandchild that holds it open is not waited for.
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::seconds{2}, [&] { return closed_; });
  return exit_code_;
}

bool Process::wait_for_output(const std::string& text, Deadline deadline) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(
      lock, deadline.at, [&] { return closed_ || output_.find(text) != std::string::npos; });
  return output_.find(text) != std::string::npos;
}

std::string Process::line_with(const std::string& text) const {
  const std::lock_guard lock(mutex_);
  const std::size_t at = output_.find(text);
  if (at == std::string::npos) {
    return {};
  }
  const std::size_t before = output_.rfind('\n', at);
  const std::size_t begin = before == std::string::npos ? 0 : before + 1;
  return output_.substr(begin, output_.find('\n', at) - begin);
}

std::string Process::output() const {
  const std::lock_guard lock(mutex_);
  return output_;
}

void Process::read_output(int fd) {
  std::array<char, 4096> buffer{};
  while (true) {
    const ssize_t count = ::read(fd, buffer.data(), buffer.size());
    const std::lock_guard lock(mutex_);
    if (count <= 0) {
      closed_ = true;
      changed_.notify_all();
      break;
    }
    output_.append(buffer.data(), static_cast<std::size_t>(count));
    changed_.notify_all();
  }
  ::close(fd);
}

}  // namespace muster::test
