// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/cli/program.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>

namespace muster::cli::testing {

Program::Program(const std::vector<std::string>& arguments) {
  std::array<int, 2> out{};
  std::array<int, 2> err{};
  static_cast<void>(!::pipe2(out.data(), O_CLOEXEC));
  static_cast<void>(!::pipe2(err.data(), O_CLOEXEC));
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, out[1], 1);
  ::posix_spawn_file_actions_adddup2(&actions, err[1], 2);
  std::string name{MUSTER_EXECUTABLE};
  std::vector<std::string> copies = arguments;
  std::vector<char*> argv{name.data()};
  for (std::string& argument : copies) {
    argv.push_back(argument.data());
  }
  argv.push_back(nullptr);
  ::posix_spawn(&pid_, MUSTER_EXECUTABLE, &actions, nullptr, argv.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(out[1]);
  ::close(err[1]);
  out_ = out[0];
  err_ = err[0];
}

Program::~Program() {
  if (pid_ > 0) {
    signal(SIGKILL);
    static_cast<void>(wait());
  }
}

void Program::signal(int number) const {
  ::kill(pid_, number);
}

bool Program::wait_for_output(const std::string& part) {
  while (result_.out.find(part) == std::string::npos) {
    if (!read_more()) {
      return false;
    }
  }
  return true;
}

ProgramResult Program::wait() {
  while (read_more()) {
  }
  int status = 0;
  ::waitpid(pid_, &status, 0);
  pid_ = 0;
  result_.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result_;
}

// False when both streams have ended.
bool Program::read_more() {
  if (out_ < 0 && err_ < 0) {
    return false;
  }
  std::array<pollfd, 2> streams{{{out_, POLLIN, 0}, {err_, POLLIN, 0}}};
  ::poll(streams.data(), streams.size(), -1);
  for (std::size_t i = 0; i < streams.size(); ++i) {
    if (streams[i].revents == 0) {
      continue;
    }
    std::array<char, 4096> buffer{};
    const ssize_t count = ::read(streams[i].fd, buffer.data(), buffer.size());
    if (count > 0) {
      (i == 0 ? result_.out : result_.err).append(buffer.data(), static_cast<std::size_t>(count));
    } else {
      ::close(streams[i].fd);
      (i == 0 ? out_ : err_) = -1;  // poll leaves it out from now on.
    }
  }
  return true;
}

ProgramResult muster(const std::vector<std::string>& arguments) {
  return Program{arguments}.wait();
}

}  // namespace muster::cli::testing
