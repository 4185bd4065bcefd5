// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/harness.h"

#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <ctime>
#include <filesystem>
#include <fstream>

namespace muster::bench {

namespace {

double seconds_on(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

double seconds_of(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
}

double ended_children_seconds() {
  rusage use{};
  getrusage(RUSAGE_CHILDREN, &use);
  return seconds_of(use.ru_utime) + seconds_of(use.ru_stime);
}

// Everything but idle and waiting for a disk; time stolen by the host counts as busy.
double busy_seconds() {
  std::ifstream file("/proc/stat");
  std::string word;
  file >> word;
  double ticks = 0;
  for (int column = 0; column < 8; ++column) {
    double value = 0;
    file >> value;
    ticks += column == 3 || column == 4 ? 0 : value;
  }
  return ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
}

// The second number of a thread's schedstat: nanoseconds ready but not running.
double waited_seconds() {
  double total = 0;
  std::error_code failed;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", failed)) {
    std::ifstream file(task.path() / "schedstat");
    double ran = 0;
    double waited = 0;
    if (file >> ran >> waited) {
      total += waited * 1e-9;
    }
  }
  return total;
}

class SystemMachine final : public Machine {
 public:
  [[nodiscard]] double wall_seconds() const override {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }

  [[nodiscard]] double thread_seconds() const override {
    return seconds_on(CLOCK_THREAD_CPUTIME_ID);
  }

  [[nodiscard]] Usage usage() const override {
    return {
        wall_seconds(),
        seconds_on(CLOCK_PROCESS_CPUTIME_ID) + ended_children_seconds(),
        waited_seconds(),
        busy_seconds()};
  }

  [[nodiscard]] int processors() const override {
    return static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  }
};

}  // namespace

const Machine& Machine::system() {
  static const SystemMachine machine;
  return machine;
}

}  // namespace muster::bench
