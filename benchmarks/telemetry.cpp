// SPDX-License-Identifier: Apache-2.0
// Claims: the cost of telemetry on the training thread.
//   claim telemetry_overhead_percent   median step with telemetry / without, minus 1, in percent
//   claim step_telemetry_us            time the agent's telemetry takes in a step, median
// Method: one process holds two complete trainings of the demo's model (one rank, the same data),
// one with telemetry on and connected to a live `muster collector`, one with it off. They step in
// turn, A B, B A, A B, so that drift of the machine hits both alike; the claim is the median of the
// paired ratios. Its 95 % interval (bootstrap) is printed: a claim inside the noise is marked.
#include "tests/integration/support/job.h"
#include "trainer/moe_lm/src/trainer.h"

#include <muster/comm/backends.h>
#include <muster/common/file.h>
#include <muster/common/random.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

namespace {

using namespace muster;
using Clock = std::chrono::steady_clock;

constexpr int kPairs = 200;
constexpr int kWarmup = 10;

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

  [[nodiscard]] double step_us() const {
    const auto begin = Clock::now();
    const auto verdict = loop->step();
    MUSTER_CHECK(verdict.ok(), verdict.status().to_string());
    return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
  }
};

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + std::ssize(values) / 2, values.end());
  return values[values.size() / 2];
}

// 95 % interval of the median by resampling.
std::pair<double, double> interval(const std::vector<double>& values) {
  Random random(1);
  std::vector<double> medians;
  for (int i = 0; i < 1000; ++i) {
    std::vector<double> sample(values.size());
    for (double& one : sample) {
      one = values[random.below(values.size())];
    }
    medians.push_back(median(std::move(sample)));
  }
  std::sort(medians.begin(), medians.end());
  return {medians[25], medians[974]};
}

}  // namespace

int main() {
  const test::ScratchFolder folder;
  test::CollectorProcess collector(folder / "bench.db");
  const std::string text = read_file(test::write_sample_text(folder.path())).value();
  const Training with(text, collector.address(), folder / "spool");
  const Training without(text, "", "");
  std::vector<double> ratios;
  std::vector<double> on;
  std::vector<double> off;
  std::vector<double> telemetry_us;
  for (int pair = 0; pair < kPairs + kWarmup; ++pair) {
    const bool with_first = pair % 2 == 0;
    const double first = (with_first ? with : without).step_us();
    const double second = (with_first ? without : with).step_us();
    if (pair < kWarmup) {
      continue;
    }
    on.push_back(with_first ? first : second);
    off.push_back(with_first ? second : first);
    ratios.push_back((on.back() / off.back() - 1) * 100);
    telemetry_us.push_back(static_cast<double>(with.loop->agent().last_telemetry_ns()) * 1e-3);
  }
  const auto [low, high] = interval(ratios);
  const double telemetry = median(telemetry_us);
  std::printf(
      "%d pairs: step %.2f ms with, %.2f ms without; 95 %% interval of the overhead "
      "[%.2f, %.2f] %%; measured on the thread: %.4f %% of the step\n",
      kPairs,
      median(on) * 1e-3,
      median(off) * 1e-3,
      low,
      high,
      telemetry / median(off) * 100);
  std::printf("claim telemetry_overhead_percent %.3f\n", median(ratios));
  std::printf("claim step_telemetry_us %.2f\n", telemetry);
  return 0;
}
