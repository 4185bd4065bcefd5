// SPDX-License-Identifier: Apache-2.0
// Claim: a killed job trains again within seconds, by itself.
//   claim restart_seconds   kill -9 of a rank to the first finished step of the next generation
// Method: the demo's model on four ranks under `muster run`, one rank killed in the middle of
// training; from kill(2) to the launcher showing the first step line of the restarted job
// (harness.h).
#include "benchmarks/harness.h"
#include "tests/integration/support/job.h"

#include <muster/common/check.h>

#include <signal.h>

#include <chrono>
#include <cstdio>
#include <span>

namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using namespace muster;
using namespace muster::test;

double one_restart(int rank) {
  const ScratchFolder folder;
  const std::string text = write_sample_text(folder.path());
  Process job(
      {muster_program(),
       "run",
       "--nproc-per-node",
       "4",
       "--run-id",
       "bench",
       "--checkpoint-root",
       folder / "checkpoints",
       "--",
       moe_lm_program(),
       "--data",
       text,
       "--steps",
       "100000",
       "--checkpoint-interval",
       "10",
       "--print-every",
       "1"});
  MUSTER_CHECK(job.wait_for_output("step 15 ", Deadline::after(120s)), job.output());
  const pid_t pid = announced_pid(job, rank);
  MUSTER_CHECK(pid > 0, "no pid announced:\n" + job.output());
  const auto killed = Clock::now();
  ::kill(pid, SIGKILL);
  MUSTER_CHECK(
      job.wait_for_output("generation 2: 4 ranks from step-", Deadline::after(60s)), job.output());
  const std::size_t restarted = job.output().find("generation 2");
  while (job.output().find("] step ", restarted) == std::string::npos) {
    MUSTER_CHECK(Clock::now() - killed < 60s, job.output());
    sched_yield();
  }
  return std::chrono::duration<double>(Clock::now() - killed).count();
}

}  // namespace

int main() {
  int run = 0;
  bench::Series series("restart", {.budget_s = 60, .rounds_min = 7}, bench::Series::Time::kWall);
  series.add_measured("restart", [&run] {
    const int rank = run++ % 4;
    const double seconds = one_restart(rank);
    std::printf("kill of rank %d: training again after %.2f s\n", rank, seconds);
    return seconds;
  });
  series.add_figure(
      {.name = "restart_seconds", .tolerance = 0.2, .digits = 2},
      [](std::span<const double> s) { return s[0]; });
  series.run();
  std::printf("%s", series.report().c_str());
  return 0;
}
