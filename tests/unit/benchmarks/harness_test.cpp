// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/harness.h"

#include <muster/common/random.h>

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <vector>

namespace muster::bench {
namespace {

// A machine whose clocks move only while work() runs.
class FakeMachine final : public Machine {
 public:
  [[nodiscard]] double wall_seconds() const override { return use_.wall; }

  [[nodiscard]] double thread_seconds() const override { return use_.own; }

  [[nodiscard]] Usage usage() const override { return use_; }

  [[nodiscard]] int processors() const override { return 2; }

  void work(double seconds) {
    use_.wall += seconds;
    use_.own += seconds;
    use_.busy += seconds;
  }

  // Work of this process while other processes use `share` of one processor.
  void work_beside(double seconds, double share) {
    work(seconds);
    use_.busy += share * seconds;
  }

  // Work that waits as long as it runs.
  void work_waiting(double seconds) {
    work(seconds);
    use_.wall += seconds;
    use_.waited += seconds;
  }

 private:
  Usage use_;
};

using Action = std::function<void()>;

Series ratio_series(FakeMachine& machine, Action a, Action b, Figure figure = {"ratio"}) {
  Series series("test", {.budget_s = 100}, Series::Time::kThread, machine);
  series.add("a", std::move(a));
  series.add("b", std::move(b));
  series.add_figure(std::move(figure), [](std::span<const double> s) { return s[0] / s[1]; });
  return series;
}

double share_covered(std::size_t samples, double memory) {
  Random random{7};
  int covered = 0;
  constexpr int kTrials = 2000;
  for (int trial = 0; trial < kTrials; ++trial) {
    std::vector<double> values;
    double previous = random.normal();
    for (std::size_t i = 0; i < samples; ++i) {
      previous = memory * previous + std::sqrt(1 - memory * memory) * random.normal();
      values.push_back(previous);
    }
    const Interval found = median_interval(values);
    covered += found.low <= 0 && 0 <= found.high ? 1 : 0;
  }
  return static_cast<double>(covered) / kTrials;
}

TEST(Interval, CoversTheTruthInAbout95PercentOfRuns) {
  for (const std::size_t samples : {6U, 7U, 9U, 15U, 40U, 200U}) {
    const double share = share_covered(samples, 0);
    EXPECT_GE(share, 0.94) << samples;
    EXPECT_LE(share, 0.995) << samples;
  }
}

TEST(Interval, CoversTheTruthWhenNeighboursResembleEachOther) {
  EXPECT_GE(share_covered(200, 0.7), 0.90);
}

TEST(Interval, HasTheMedianOfAnEvenNumberOfSamplesBetweenTheTwo) {
  EXPECT_DOUBLE_EQ(median_interval(std::vector<double>{1, 2, 4, 8}).value, 3);
}

TEST(Series, CancelsDriftThatBothSidesShare) {
  FakeMachine machine;
  double slowness = 1;
  const auto variant = [&](double seconds) {
    return [&, seconds] {
      machine.work(seconds * slowness);
      slowness *= 1.001;
    };
  };
  Series series = ratio_series(machine, variant(0.2), variant(0.1));
  series.run();
  EXPECT_TRUE(series.is_settled(0));
  EXPECT_NEAR(series.interval(0).value, 2, 0.01);
}

TEST(Series, AddsRoundsUntilTheIntervalIsNarrowAndStillCoversTheTruth) {
  int covered = 0;
  constexpr int kRuns = 300;
  for (std::uint64_t seed = 1; seed <= kRuns; ++seed) {
    FakeMachine machine;
    Random random{seed};
    const auto noisy = [&] { machine.work(0.1 * (1 + 0.05 * random.normal())); };
    Series series = ratio_series(machine, noisy, [&] { machine.work(0.1); });
    series.run();
    EXPECT_TRUE(series.is_settled(0)) << seed;
    EXPECT_GT(series.rounds(), 10U) << seed;
    const Interval found = series.interval(0);
    covered += found.low <= 1 && 1 <= found.high ? 1 : 0;
  }
  EXPECT_GE(covered, 0.93 * kRuns);
}

TEST(Series, StopsAfterFewRoundsWithoutNoise) {
  FakeMachine machine;
  Series series = ratio_series(
      machine, [&] { machine.work(0.2); }, [&] { machine.work(0.2); });
  series.run();
  EXPECT_LE(series.rounds(), 10U);
}

TEST(Series, ShowsOneRoundWithoutABudget) {
  FakeMachine machine;
  Series series("test", {.budget_s = 0}, Series::Time::kThread, machine);
  series.add("a", [&] { machine.work(0.001); });
  series.add_figure({"seconds"}, [](std::span<const double> s) { return s[0]; });
  series.run();
  EXPECT_EQ(series.rounds(), 1U);
  EXPECT_NE(series.report().find("claim seconds noisy\n"), std::string::npos);
}

TEST(Series, CallsAFigureNoisyWhenTheBudgetIsSpent) {
  FakeMachine machine;
  Random random{3};
  const auto noisy = [&] { machine.work(0.1 * (0.2 + 5 * random.uniform())); };
  Series series = ratio_series(machine, noisy, [&] { machine.work(0.1); });
  series.run();
  EXPECT_FALSE(series.is_settled(0));
  EXPECT_NE(series.report().find("claim ratio noisy\n"), std::string::npos);
}

TEST(Series, LeavesOutRoundsBesideOtherWork) {
  FakeMachine machine;
  int calls = 0;
  const auto loaded = [&] {  // half of the time other work runs and makes this side slower
    const bool beside = calls++ / 4 % 2 == 1;
    machine.work_beside(beside ? 0.6 : 0.4, beside ? 0.9 : 0.0);
  };
  Series series = ratio_series(machine, loaded, [&] { machine.work(0.4); });
  series.run();
  EXPECT_TRUE(series.is_settled(0));
  EXPECT_LT(series.quiet_rounds(), series.rounds());
  EXPECT_NEAR(series.interval(0).value, 1, 0.001);
}

TEST(Series, CallsAFigureNoisyIfOtherWorkNeverStops) {
  FakeMachine machine;
  Series series = ratio_series(
      machine, [&] { machine.work_beside(0.6, 0.9); }, [&] { machine.work_beside(0.4, 0.9); });
  series.run();
  EXPECT_FALSE(series.is_settled(0));
  EXPECT_EQ(series.quiet_rounds(), 0U);
}

TEST(Series, LeavesOutRoundsInWhichThreadsWaitedForAProcessor) {
  FakeMachine machine;
  Series series = ratio_series(
      machine, [&] { machine.work_waiting(0.4); }, [&] { machine.work(0.4); });
  series.run();
  EXPECT_FALSE(series.is_settled(0));
}

TEST(Series, KeepsFiguresThatOtherWorkDoesNotChange) {
  FakeMachine machine;
  Series series = ratio_series(
      machine,
      [&] { machine.work_beside(0.4, 0.9); },
      [&] { machine.work_beside(0.4, 0.9); },
      {.name = "ratio", .needs_quiet = false});
  series.run();
  EXPECT_TRUE(series.is_settled(0));
}

TEST(Series, CallsAFigureNoisyWhoseHalvesDisagree) {
  FakeMachine machine;
  int calls = 0;
  const auto changing = [&] {  // settles only after the first half
    machine.work(calls++ < 40 ? 0.40 + 0.0001 * (calls % 7) : 0.42 + 0.0001 * (calls % 7));
  };
  Series series("test", {.budget_s = 66, .rounds_min = 80}, Series::Time::kThread, machine);
  series.add("a", changing);
  series.add("b", [&] { machine.work(0.4); });
  series.add_figure({"ratio", 0.03}, [](std::span<const double> s) { return s[0] / s[1]; });
  series.run();
  EXPECT_FALSE(series.is_settled(0));
}

// A load of random length comes and goes, and the kernel does not account for it.
TEST(Series, IsNoisyBesideALoadThatComesAndGoes) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    FakeMachine machine;
    Random random{seed};
    int left = 0;
    bool loaded = false;
    const auto hurt = [&] {
      if (left-- <= 0) {
        loaded = !loaded;
        left = static_cast<int>(random.below(12));
      }
      machine.work((loaded ? 0.45 : 0.3) * (1 + 0.01 * random.normal()));
    };
    Series series("test", {.budget_s = 100, .rounds_min = 30}, Series::Time::kThread, machine);
    series.add("a", hurt);
    series.add("b", [&] { machine.work(0.3); });
    series.add_figure({"ratio"}, [](std::span<const double> s) { return s[0] / s[1]; });
    series.run();
    EXPECT_FALSE(series.is_settled(0)) << "seed " << seed << ": " << series.interval(0).value;
  }
}

TEST(Series, DecidesAsTheGroupDoes) {
  FakeMachine machine;
  int asked = 0;
  Series series("test", {.budget_s = 10}, Series::Time::kWall, machine, [&](double value) {
    ++asked;
    return value + 1;  // another rank is always disturbed and always wants to stop
  });
  series.add("a", [&] { machine.work(0.4); });
  series.add_figure({"seconds"}, [](std::span<const double> s) { return s[0]; });
  series.run();
  EXPECT_GT(asked, 0);
  EXPECT_EQ(series.rounds(), 1U);
  EXPECT_EQ(series.quiet_rounds(), 0U);
}

TEST(Claim, ShowsHalfOfTheTolerancePlusOrMinusAtLeast) {
  EXPECT_EQ(
      claim_line({.name = "x", .tolerance = 0.04, .digits = 2}, {2, 1.999, 2.001}),
      "claim x 2.00 ± 0.04\n");
  EXPECT_EQ(
      claim_line({.name = "x", .tolerance = 0.04, .digits = 2}, {2, 1.94, 2.001}),
      "claim x 2.00 ± 0.06\n");
}

}  // namespace
}  // namespace muster::bench
