// SPDX-License-Identifier: Apache-2.0
// Claims: the cost of telemetry.
//   claim telemetry_cpu_percent        processor time of the agent's threads, and of telemetry on
//                                      the training thread, over that of a step
//   claim step_telemetry_us            time the agent's telemetry takes in a step
//   claim telemetry_overhead_percent   wall time of a step with telemetry / without, minus 1
// Method: one process holds two complete trainings of the demo's model (one rank, the same data),
// one with telemetry on and connected to a live `muster collector`, one with it off. They step in
// turn (harness.h). The agent's threads are those that only the first has; the kernel counts their
// time and context switches while it steps alone. Where there are two processors, they and the
// collector stay off that of the training thread.
#include "benchmarks/harness.h"
#include "tests/integration/support/job.h"
#include "trainer/moe_lm/src/trainer.h"

#include <muster/comm/backends.h>
#include <muster/common/file.h>
#include <muster/common/random.h>

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace muster;
using bench::must;
using bench::Series;

struct Training {
  std::vector<std::unique_ptr<comm::Communicator>> world{comm::make_local_group(1)};
  std::unique_ptr<moe_lm::TrainingLoop> loop;

  Training(const std::string& text, const std::string& collector, const std::string& folder) {
    moe_lm::TrainSetup setup;
    setup.text = &text;
    setup.options.steps = 1'000'000;
    setup.options.print_every = 0;
    setup.agent.identity = {"bench", Generation{1}, Rank{0}, random_hex_id()};
    setup.agent.telemetry = !collector.empty();
    setup.agent.collector = collector;
    setup.agent.spool_directory = folder;
    moe_lm::choose_ep_size(setup.options, 1);
    auto started = moe_lm::TrainingLoop::start(*world[0], std::move(setup));
    MUSTER_CHECK(started.ok(), started.status().to_string());
    loop = std::move(started).value();
  }

  void step() const { must(loop->step().status()); }
};

using Tasks = std::set<std::string>;  // ids of threads

Tasks tasks_of(pid_t process) {
  Tasks tasks;
  const std::string folder = "/proc/" + std::to_string(process) + "/task";
  for (const auto& task : std::filesystem::directory_iterator(folder)) {
    tasks.insert(task.path().filename());
  }
  return tasks;
}

// Processor time of threads of this process, as the kernel counts it.
double processor_seconds(const Tasks& tasks) {
  double total = 0;
  for (const std::string& task : tasks) {
    std::ifstream file("/proc/self/task/" + task + "/schedstat");
    double ran_ns = 0;
    file >> ran_ns;
    total += 1e-9 * ran_ns;
  }
  return total;
}

double switches(const Tasks& tasks) {
  double total = 0;
  for (const std::string& task : tasks) {
    std::ifstream file("/proc/self/task/" + task + "/status");
    for (std::string line; std::getline(file, line);) {
      if (line.find("ctxt_switches:") != std::string::npos) {
        total += std::strtod(line.c_str() + line.find(':') + 1, nullptr);
      }
    }
  }
  return total;
}

double own_switches() {
  rusage use{};
  getrusage(RUSAGE_THREAD, &use);
  return static_cast<double>(use.ru_nvcsw + use.ru_nivcsw);
}

void allow(const Tasks& tasks, const cpu_set_t& processors) {
  for (const std::string& task : tasks) {
    sched_setaffinity(std::atoi(task.c_str()), sizeof(processors), &processors);
  }
}

// Gives the training thread a processor of its own. Returns false if there is only one.
bool keep_apart(const Tasks& agent, const Tasks& collector) {
  cpu_set_t all;
  CPU_ZERO(&all);
  sched_getaffinity(0, sizeof(all), &all);
  std::size_t last = CPU_SETSIZE - 1;
  while (!CPU_ISSET(last, &all)) {
    --last;
  }
  if (CPU_COUNT(&all) < 2) {
    return false;
  }
  cpu_set_t training;
  CPU_ZERO(&training);
  CPU_SET(last, &training);
  CPU_CLR(last, &all);
  allow(agent, all);
  allow(collector, all);
  return sched_setaffinity(0, sizeof(training), &training) == 0;
}

// Growth of a counter from one reading to the next.
class Growth {
 public:
  explicit Growth(std::function<double()> counter)
      : counter_(std::move(counter)), before_(counter_()) {}

  void read() {
    const double now = counter_();
    last_ = now - std::exchange(before_, now);
  }

  [[nodiscard]] double last() const { return last_; }

 private:
  std::function<double()> counter_;
  double before_;
  double last_{0};
};

// Processor time and switches of the training thread in one step.
struct StepCost {
  double seconds{0};
  double switches{0};

  void run(const Training& training) {
    const double before = own_switches();
    const double begin = bench::Machine::system().thread_seconds();
    training.step();
    seconds = bench::Machine::system().thread_seconds() - begin;
    switches = own_switches() - before;
  }
};

using Seconds = std::span<const double>;

// The wall-clock difference between steps with and without telemetry.
void compare(const Training& with, const Training& without) {
  StepCost on;
  StepCost off;
  Series series("with and without", {.budget_s = 60, .rounds_min = 30}, Series::Time::kWall);
  const auto step_on = series.add("step with telemetry", [&] { on.run(with); });
  const auto step_off = series.add("step without", [&] { off.run(without); });
  const auto more = series.add_measured("switches", [&] { return on.switches - off.switches; });
  series.add_figure(
      {.name = "further switches of the training thread", .is_claim = false, .digits = 0},
      [=](Seconds s) { return s[more]; });
  series.add_figure(
      {.name = "telemetry_overhead_percent", .tolerance = 0.4, .is_relative = false, .digits = 2},
      [=](Seconds s) { return 100 * (s[step_on] / s[step_off] - 1); });
  series.run();
  std::printf("%s", series.report().c_str());
}

// What the kernel and the agent count while steps with telemetry follow each other.
void account(const Training& with, const Tasks& agent) {
  StepCost cost;
  Growth seconds{[&] { return processor_seconds(agent); }};
  Growth agent_switches{[&] { return switches(agent); }};
  Series series("telemetry alone", {.budget_s = 25, .rounds_min = 30}, Series::Time::kWall);
  series.add("step", [&] {
    cost.run(with);
    seconds.read();
    agent_switches.read();
  });
  const auto step = series.add_measured("processor time", [&] { return cost.seconds; });
  const auto others = series.add_measured("agent's threads", [&] { return seconds.last(); });
  const auto switched = series.add_measured("switches", [&] { return agent_switches.last(); });
  const auto own = series.add_measured("training thread", [&] {
    return 1e-9 * static_cast<double>(with.loop->agent().last_telemetry_ns());
  });
  series.add_figure(
      {.name = "context switches of the agent's threads per step", .is_claim = false, .digits = 0},
      [=](Seconds s) { return s[switched]; });
  series.add_figure(
      {.name = "telemetry_cpu_percent", .tolerance = 0.03, .is_relative = false},
      [=](Seconds s) { return 100 * (s[others] + s[own]) / s[step]; });
  series.add_figure({.name = "step_telemetry_us", .tolerance = 0.15, .digits = 2}, [=](Seconds s) {
    return 1e6 * s[own];
  });
  series.run();
  std::printf("%s", series.report().c_str());
}

}  // namespace

int main() {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const test::ScratchFolder folder;
  test::CollectorProcess collector(folder / "bench.db");
  const std::string text = read_file(test::write_sample_text(folder.path())).value();
  const Training without(text, "", "");
  without.step();
  const Tasks before = tasks_of(getpid());
  const Training with(text, collector.address(), folder / "spool");
  with.step();
  Tasks agent;
  for (const std::string& task : tasks_of(getpid())) {
    if (!before.contains(task)) {
      agent.insert(task);
    }
  }
  const bool apart = keep_apart(agent, tasks_of(collector.process().pid()));
  std::printf(
      "threads of the agent: %zu; collector and agent %s\n",
      agent.size(),
      apart ? "off the training thread's processor" : "share the only processor");
  for (int step = 0; step < 9; ++step) {  // caches, rings, the connection
    with.step();
    without.step();
  }
  compare(with, without);
  account(with, agent);
  return 0;
}
