// SPDX-License-Identifier: Apache-2.0
#include "launcher/src/rank_process.h"

#include <muster/common/signals.h>

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string_view>

namespace muster::launcher {

namespace {

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> out;
  out.reserve(strings.size() + 1);
  for (const std::string& string : strings) {
    out.push_back(const_cast<char*>(string.c_str()));  // execve takes char* but does not write.
  }
  out.push_back(nullptr);
  return out;
}

struct ChildSetup {
  pid_t parent;
  int output;
  int input;
  int error_pipe;
  const char* path;
  char* const* arguments;
  char* const* environment;
};

// Between fork and exec; only async-signal-safe calls, for other threads may have held locks.
[[noreturn]] void run_child(const ChildSetup& setup) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != setup.parent) {
    ::_exit(127);  // The launcher died before the line above.
  }

  struct sigaction reset {};

  reset.sa_handler = SIG_DFL;
  for (int number = 1; number < NSIG; ++number) {
    // The launcher itself ignores SIGPIPE; what else is ignored was so before it started.
    if (number == SIGPIPE || !ignores_signal(number)) {
      ::sigaction(number, &reset, nullptr);
    }
  }
  sigset_t none;
  sigemptyset(&none);
  ::pthread_sigmask(SIG_SETMASK, &none, nullptr);
  if (::dup2(setup.input, 0) >= 0 && ::dup2(setup.output, 1) >= 0 && ::dup2(setup.output, 2) >= 0) {
    ::execve(setup.path, setup.arguments, setup.environment);
  }
  const int error = errno;
  static_cast<void>(!::write(setup.error_pipe, &error, sizeof(error)));
  ::_exit(127);
}

// 0 when the child executes the program, else its errno.
int read_exec_error(int fd) {
  int error = 0;
  ssize_t count = 0;
  do {
    count = ::read(fd, &error, sizeof(error));
  } while (count < 0 && errno == EINTR);
  return count == static_cast<ssize_t>(sizeof(error)) ? error : 0;
}

// The kernel's ENOENT may mean the interpreter of a script, ENOEXEC a script without one.
Status exec_error(const std::string& path, int error) {
  const Status plain = io_error("cannot execute " + path, error);
  std::array<char, 256> head{};
  const FileDescriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  const ssize_t size = file.valid() ? ::read(file.get(), head.data(), head.size()) : -1;
  if (size < 0) {
    return plain;
  }
  std::string_view line{head.data(), static_cast<std::size_t>(size)};
  line = line.substr(0, line.find('\n'));
  if (error == ENOENT && line.starts_with("#!")) {
    const bool windows = line.ends_with('\r');
    return not_found(
        "cannot execute ",
        path,
        ": its first line asks for the interpreter '",
        line.substr(2, line.size() - (windows ? 3 : 2)),
        windows
            ? "' followed by a carriage return; give the file Unix line ends (sed -i 's/\\r$//')"
            : "', which does not exist");
  }
  if (error == ENOEXEC) {
    return invalid_argument(
        "cannot execute ", path, ": neither a program for this machine nor a script with '#!'");
  }
  return plain;
}

// By number: the wrapper in glibc 2.36 has no C linkage.
int open_pidfd(pid_t pid) {
  return static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
}

void wait_for(pid_t pid) {
  while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
}

}  // namespace

Expected<RankProcess> RankProcess::start(const SpawnRequest& request, int output) {
  const std::vector<char*> arguments = pointers(request.arguments);
  const std::vector<char*> environment = pointers(request.environment);
  const FileDescriptor input{::open("/dev/null", O_RDONLY | O_CLOEXEC)};
  std::array<int, 2> ends{};
  if (!input.valid() || ::pipe2(ends.data(), O_CLOEXEC) != 0) {
    return io_error("starting rank " + std::to_string(request.rank), errno);
  }
  const FileDescriptor error_read{ends[0]};
  FileDescriptor error_write{ends[1]};
  const ChildSetup setup{
      ::getpid(),
      output,
      input.get(),
      error_write.get(),
      request.path.c_str(),
      arguments.data(),
      environment.data()};
  const pid_t pid = ::fork();
  if (pid < 0) {
    return io_error("starting rank " + std::to_string(request.rank), errno);
  }
  if (pid == 0) {
    run_child(setup);
  }
  ::setpgid(pid, pid);  // Both sides do it, so that neither has to wait for the other.
  error_write = FileDescriptor{};
  if (const int error = read_exec_error(error_read.get()); error != 0) {
    wait_for(pid);
    return exec_error(request.path, error);
  }
  FileDescriptor pidfd{open_pidfd(pid)};
  if (!pidfd.valid()) {
    const int error = errno;
    ::kill(-pid, SIGKILL);
    wait_for(pid);
    return io_error("watching rank " + std::to_string(request.rank), error);
  }
  return RankProcess{request.rank, pid, std::move(pidfd)};
}

RankProcess::RankProcess(RankProcess&& other) noexcept
    : rank_(other.rank_),
      pid_(other.pid_),
      pidfd_(std::move(other.pidfd_)),
      alive_(std::exchange(other.alive_, false)) {}

RankProcess::~RankProcess() {
  if (alive_) {
    signal(SIGKILL);
    wait_for(pid_);
  }
}

void RankProcess::signal(int number) const {
  if (alive_) {
    ::kill(-pid_, number);
  }
}

std::optional<RankExit> RankProcess::reap() {
  siginfo_t info{};
  if (!alive_ ||
      ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
      info.si_pid != pid_) {
    return std::nullopt;
  }
  // While the leader is a zombie, its process id cannot have been reused.
  signal(SIGKILL);
  RankExit exit{rank_, pid_, 0};
  while (::waitpid(pid_, &exit.wait_status, 0) < 0 && errno == EINTR) {
  }
  alive_ = false;
  return exit;
}

Expected<std::string> find_program(const std::string& program) {
  if (program.empty()) {
    return invalid_argument("the program has no name");
  }
  if (program.find('/') != std::string::npos) {
    std::error_code ignored;
    const auto type = std::filesystem::status(program, ignored).type();
    if (type == std::filesystem::file_type::not_found) {
      return not_found("there is no program ", program);
    }
    if (type == std::filesystem::file_type::none) {
      return not_found(program, ": ", ignored.message());
    }
    if (type != std::filesystem::file_type::regular) {
      return not_found(
          program,
          type == std::filesystem::file_type::directory ? " is a folder, not a program"
                                                        : " is not a program");
    }
    if (::access(program.c_str(), X_OK) != 0) {
      return not_found(program, " is not executable; chmod +x makes it so");
    }
    return program;
  }
  // Nothing in this process writes the environment; a rank gets its own after the fork.
  const char* path_variable = std::getenv("PATH");  // NOLINT(concurrency-mt-unsafe)
  std::string_view path{path_variable == nullptr ? "/usr/bin:/bin" : path_variable};
  while (!path.empty()) {
    const std::size_t colon = path.find(':');
    const std::filesystem::path candidate = std::filesystem::path{path.substr(0, colon)} / program;
    std::error_code ignored;
    if (::access(candidate.c_str(), X_OK) == 0 &&
        std::filesystem::is_regular_file(candidate, ignored)) {
      return candidate.string();
    }
    path = colon == std::string_view::npos ? std::string_view{} : path.substr(colon + 1);
  }
  return not_found("no program '" + program + "' in PATH; give its path");
}

}  // namespace muster::launcher
