// SPDX-License-Identifier: Apache-2.0
#include "tests/support/forked_ranks.h"

#include <gtest/gtest.h>

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <exception>

namespace muster::test {

namespace {

using std::chrono::steady_clock;

// In a child: where its reports go.
int child_report_fd = -1;

// One byte of the pipe that stands for "ready"; reports are text and never hold it.
constexpr char kReadyMark = '\x06';

void write_all(int fd, const char* data, std::size_t size) {
  while (size > 0) {
    const ssize_t count = ::write(fd, data, size);
    if (count <= 0) {
      if (count < 0 && errno == EINTR) {
        continue;
      }
      return;  // The parent has ended, so the report has no reader.
    }
    data += count;
    size -= static_cast<std::size_t>(count);
  }
}

[[noreturn]] void run_child(const RankBody& body, int rank, int report_fd) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::signal(SIGPIPE, SIG_IGN);
  child_report_fd = report_fd;
  int exit_code = 0;
  std::string report;
  try {
    report = body(rank);
  } catch (const std::exception& error) {
    report = std::string{"exception: "} + error.what();
    exit_code = 1;
  } catch (...) {
    report = "exception of unknown type";
    exit_code = 1;
  }
  write_all(report_fd, report.data(), report.size());
  ::_exit(exit_code);
}

}  // namespace

ForkedRanks::ForkedRanks(int size, const RankBody& body) : started_at_(steady_clock::now()) {
  ::fflush(nullptr);  // Or every child would print the parent's buffered output again.
  for (int rank = 0; rank < size; ++rank) {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
      ADD_FAILURE() << "pipe2 failed: errno " << errno;
      return;
    }
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::close(ends[0]);
      for (const Child& sibling : children_) {
        ::close(sibling.report_fd);
      }
      run_child(body, rank, ends[1]);
    }
    ::close(ends[1]);
    if (pid < 0) {
      ::close(ends[0]);
      ADD_FAILURE() << "fork failed: errno " << errno;
      return;
    }
    children_.push_back(Child{});
    children_.back().pid = pid;
    children_.back().report_fd = ends[0];
  }
}

ForkedRanks::~ForkedRanks() {
  for (Child& child : children_) {
    if (!child.reaped) {
      ::kill(child.pid, SIGKILL);
      reap(child);
    }
    if (child.report_fd >= 0) {
      ::close(child.report_fd);
    }
  }
}

pid_t ForkedRanks::pid(int rank) const {
  return children_.at(static_cast<std::size_t>(rank)).pid;
}

void ForkedRanks::send_signal(int rank, int signal) {
  const Child& child = children_.at(static_cast<std::size_t>(rank));
  if (!child.reaped) {
    ::kill(child.pid, signal);
  }
}

void ForkedRanks::report_ready() {
  write_all(child_report_fd, &kReadyMark, 1);
}

void ForkedRanks::read_available(Child& child) {
  std::array<char, 4096> buffer{};
  const ssize_t count = ::read(child.report_fd, buffer.data(), buffer.size());
  if (count < 0 && errno == EINTR) {
    return;
  }
  if (count <= 0) {  // The child has ended: no other process holds the other end.
    ::close(child.report_fd);
    child.report_fd = -1;
    child.result.ended_after = steady_clock::now() - started_at_;
    return;
  }
  const auto* end = buffer.data() + count;
  for (const char* at = buffer.data(); at != end; ++at) {
    if (*at == kReadyMark) {
      child.is_ready = true;
    } else {
      child.result.report += *at;
    }
  }
}

// Waits for news of any child, at most until `until`; false when there was none.
bool ForkedRanks::pump(steady_clock::time_point until) {
  std::vector<pollfd> entries;
  std::vector<Child*> owners;
  for (Child& child : children_) {
    if (child.report_fd >= 0) {
      entries.push_back({child.report_fd, POLLIN, 0});
      owners.push_back(&child);
    }
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - steady_clock::now());
  const int timeout_ms = static_cast<int>(std::max<std::int64_t>(0, left.count()));
  const int ready = ::poll(entries.data(), entries.size(), timeout_ms);
  if (ready < 0 && errno == EINTR) {
    return true;
  }
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (entries[i].revents != 0) {
      read_available(*owners[i]);
    }
  }
  return ready > 0;
}

bool ForkedRanks::wait_ready(const std::vector<int>& ranks, std::chrono::nanoseconds limit) {
  const auto until = steady_clock::now() + limit;
  const auto settled = [&](int rank) {
    const Child& child = children_.at(static_cast<std::size_t>(rank));
    return child.is_ready || child.report_fd < 0;
  };
  while (!std::all_of(ranks.begin(), ranks.end(), settled)) {
    if (!pump(until)) {
      return false;
    }
  }
  return std::all_of(ranks.begin(), ranks.end(), [&](int rank) {
    return children_.at(static_cast<std::size_t>(rank)).is_ready;
  });
}

bool ForkedRanks::wait_ended(const std::vector<int>& ranks, std::chrono::nanoseconds limit) {
  const auto until = steady_clock::now() + limit;
  const auto ended = [&](int rank) {
    return children_.at(static_cast<std::size_t>(rank)).report_fd < 0;
  };
  while (!std::all_of(ranks.begin(), ranks.end(), ended)) {
    if (!pump(until)) {
      return false;
    }
  }
  return true;
}

void ForkedRanks::reap(Child& child) {
  int status = 0;
  while (::waitpid(child.pid, &status, 0) < 0 && errno == EINTR) {
  }
  child.reaped = true;
  if (WIFEXITED(status)) {
    child.result.exit_code = WEXITSTATUS(status);
  } else if (WIFSIGNALED(status)) {
    child.result.signal = WTERMSIG(status);
  }
}

std::vector<RankResult> ForkedRanks::wait(std::chrono::nanoseconds limit) {
  const auto until = steady_clock::now() + limit;
  const auto is_open = [](const Child& child) { return child.report_fd >= 0; };
  while (std::any_of(children_.begin(), children_.end(), is_open) && pump(until)) {
  }
  std::vector<RankResult> results;
  for (Child& child : children_) {
    child.result.ended = child.report_fd < 0;
    if (!child.result.ended) {
      ::kill(child.pid, SIGKILL);
    }
    if (!child.reaped) {
      reap(child);
    }
    results.push_back(child.result);
  }
  return results;
}

std::vector<std::string> run_ranks(int size, const RankBody& body, std::chrono::nanoseconds limit) {
  ForkedRanks ranks{size, body};
  const std::vector<RankResult> results = ranks.wait(limit);
  EXPECT_EQ(results.size(), static_cast<std::size_t>(size));
  std::vector<std::string> reports;
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    const RankResult& result = results[rank];
    EXPECT_TRUE(result.ended) << "rank " << rank << " still ran at the time limit";
    EXPECT_EQ(result.exit_code, 0)
        << "rank " << rank << " signal " << result.signal << ": " << result.report;
    reports.push_back(result.report);
  }
  return reports;
}

}  // namespace muster::test
