// SPDX-License-Identifier: Apache-2.0
// The collector dies, hangs or was never there: training does not notice and nothing acked is lost.
#include "tests/integration/support/job.h"

#include <muster/store/query.h>

#include <gtest/gtest.h>

#include <signal.h>

#include <map>

namespace muster::test {
namespace {

constexpr auto kPatience = std::chrono::seconds{120};

class CollectorFault : public ::testing::Test {
 protected:
  [[nodiscard]] std::string database() const { return folder_ / "muster.db"; }

  [[nodiscard]] JobOptions job(const std::string& name, const std::string& collector) const {
    JobOptions options;
    options.folder = folder_ / name;
    options.name = name;
    options.collector = collector;
    options.steps = 200;
    options.checkpoint_interval = 50;
    options.trainer = {"--print-every", "1"};
    return options;
  }

  [[nodiscard]] std::string undisturbed(int steps) const {
    JobOptions options = job("undisturbed", "");
    options.steps = steps;
    EXPECT_EQ(run_to_end(options), 0);
    return parameters_of(options);
  }

  // Number of stored samples of the loss for each step in generation 1.
  [[nodiscard]] std::map<std::int64_t, std::uint32_t> stored_steps(const std::string& run) const {
    std::map<std::int64_t, std::uint32_t> steps;
    const auto query = store::Query::open(database());
    if (!query.ok()) {
      return steps;
    }
    for (const store::SeriesInfo& one : (*query)->series(run).value_or({})) {
      if (one.name != "train_loss_nats") {
        continue;
      }
      const auto range = (*query)->range(run, one.series_id, 1, 0, -1, 1 << 16);
      for (const store::Bucket& bucket :
           range.ok() ? range->buckets : std::vector<store::Bucket>{}) {
        steps[bucket.step_first] += bucket.count;
      }
    }
    return steps;
  }

  [[nodiscard]] bool eventually_stored(const std::string& run, std::size_t count) const {
    const Deadline deadline = Deadline::after(kPatience);
    while (stored_steps(run).size() < count) {
      if (deadline.expired()) {
        return false;
      }
      sched_yield();
    }
    return true;
  }

  ScratchFolder folder_;
};

TEST_F(CollectorFault, KilledAndRestartedDuringTrainingLosesAndDoublesNothing) {
  auto collector = std::make_unique<CollectorProcess>(database());
  const int port = collector->agent_port();
  JobOptions options = job("outage", collector->address());
  options.steps = 600;  // so many that the last restart comes well before the end
  const auto running = launch(options);
  for (const int step : {30, 80, 130}) {
    ASSERT_TRUE(
        running->wait_for_output("step " + std::to_string(step) + " ", Deadline::after(kPatience)))
        << running->output();
    collector->process().signal(SIGKILL);
    ASSERT_EQ(collector->process().wait(Deadline::after(kPatience)), 128 + SIGKILL);
    ASSERT_TRUE(running->wait_for_output(
        "step " + std::to_string(step + 20) + " ", Deadline::after(kPatience)))
        << "training must go on without a collector\n"
        << running->output();
    collector = std::make_unique<CollectorProcess>(database(), port);
  }
  ASSERT_EQ(running->wait(Deadline::after(kPatience)), 0) << running->output();
  ASSERT_TRUE(eventually_stored("outage", static_cast<std::size_t>(options.steps)));
  for (const auto& [step, count] : stored_steps("outage")) {
    EXPECT_EQ(count, 1U) << "step " << step;
  }
  EXPECT_TRUE(parameters_of(options) == undisturbed(options.steps));
}

TEST_F(CollectorFault, StoppedForTheWholeRunDoesNotStopTraining) {
  CollectorProcess collector(database());
  collector.process().signal(SIGSTOP);
  const JobOptions options = job("frozen", collector.address());
  EXPECT_EQ(run_to_end(options), 0);
  collector.process().signal(SIGCONT);
  EXPECT_TRUE(parameters_of(options) == undisturbed(options.steps));
}

TEST_F(CollectorFault, NeverThereDoesNotStopTraining) {
  EXPECT_EQ(run_to_end(job("alone", "127.0.0.1:1")), 0);
}

}  // namespace
}  // namespace muster::test
