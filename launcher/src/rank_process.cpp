// SPDX-License-Identifier: Apache-2.0
#include "launcher/src/rank_process.h"

#include <muster/common/file.h>
#include <muster/common/signals.h>
#include <muster/common/text.h>

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
  Status plain = io_error("cannot execute " + path, error);
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
      alive_(std::exchange(other.alive_, false)),
      ended_(other.ended_),
      wait_status_(other.wait_status_),
      orphan_status_(other.orphan_status_),
      orphan_killed_(other.orphan_killed_) {}

RankProcess::~RankProcess() {
  if (alive_) {
    signal(SIGKILL);
    if (!ended_) {
      wait_for(pid_);
    }
  }
}

void RankProcess::signal(int number) const {
  if (alive_) {
    ::kill(-pid_, number);
  }
}

std::optional<RankExit> RankProcess::reap() {
  if (!alive_) {
    return std::nullopt;
  }
  if (!ended_) {
    ended_ = ::waitpid(pid_, &wait_status_, WNOHANG) == pid_;
  }
  if (!ended_) {
    return std::nullopt;
  }
  // The last process of the group is an orphan and so a child of this process: until it is reaped
  // here, the number of the group cannot be used again.
  int status = 0;
  while (::waitpid(-pid_, &status, WNOHANG) > 0) {
    note_orphan(status);
  }
  if (::kill(-pid_, 0) == 0 || errno != ESRCH) {
    return std::nullopt;
  }
  alive_ = false;
  // A helper's 0 says nothing of a trainer that was killed.
  const bool says_more =
      orphan_status_ &&
      (!orphan_killed_ || kind_of({rank_, pid_, *orphan_status_}) != ExitKind::kDone);
  const bool replaced = says_more && ended_by_sigterm(wait_status_);
  return RankExit{rank_, pid_, replaced ? *orphan_status_ : wait_status_};
}

// The most telling one: a code before a signal, 93 before 75 before others before 0.
void RankProcess::note_orphan(int wait_status) {
  orphan_killed_ = orphan_killed_ || WIFSIGNALED(wait_status) || ended_by_sigterm(wait_status);
  const auto weight = [this](int status) {
    if (!WIFEXITED(status) || ended_by_sigterm(status)) {
      return 0;
    }
    switch (kind_of({rank_, pid_, status})) {
      case ExitKind::kNeverRestart:
        return 4;
      case ExitKind::kPreempted:
        return 3;
      case ExitKind::kDone:
        return 1;
      default:
        return 2;
    }
  };
  if (weight(wait_status) > 0 &&
      (!orphan_status_ || weight(wait_status) > weight(*orphan_status_))) {
    orphan_status_ = wait_status;
  }
}

std::string RankProcess::leftovers() const {
  std::string names;
  std::error_code error;
  for (auto entry = std::filesystem::directory_iterator{"/proc", error};
       !error && entry != std::filesystem::end(entry);
       entry.increment(error)) {
    const auto pid = parse<pid_t>(entry->path().filename().string());
    if (pid && *pid != pid_ && ::getpgid(*pid) == pid_) {
      std::string name = read_file(entry->path() / "comm", 64).value_or("a process\n");
      name = name.substr(0, name.find('\n'));
      names += (names.empty() ? "" : ", ") + name + " (pid " + std::to_string(*pid) + ")";
    }
  }
  return names;
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
