// SPDX-License-Identifier: Apache-2.0
// Measures figures that a second run does not contradict.
//
// The variants of a Series take turns, A B, B A, in one process or one group of ranks, and a figure
// is the median over rounds of what one round's times give, with a 95 % interval. Rounds in which
// other work had the processors, by the kernel's accounting, do not count for figures that need a
// quiet machine. Rounds are added until every interval is narrow or the budget is spent; a claim
// whose interval is still wide, or whose first and second half disagree, is printed as noisy.
#pragma once

#include <muster/common/status.h>

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace muster::bench {

// A median and the interval that holds the true one with 95 % probability.
struct Interval {
  double value{0};
  double low{0};
  double high{0};

  [[nodiscard]] double half() const;
};

// Order statistics of the median, wider by the correlation of neighbours. Fewer than six samples
// give their whole range, which covers less than 95 %. `samples` must not be empty.
[[nodiscard]] Interval median_interval(std::span<const double> samples);

[[nodiscard]] double median(std::vector<double> values);

// Prints an error and ends the program with exit code 1.
void must(const Status& status);

// Counters of the processors, all in seconds since some fixed time.
struct Usage {
  double wall{0};
  double own{0};     // processor time of this process and of its children that ended
  double waited{0};  // time that threads of this process were ready to run but did not
  double busy{0};    // processor time of everything on the machine
};

// Source of time and of the kernel's accounting; tests inject one.
class Machine {
 public:
  Machine() = default;
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;
  Machine(Machine&&) = delete;
  Machine& operator=(Machine&&) = delete;
  virtual ~Machine() = default;

  [[nodiscard]] virtual double wall_seconds() const = 0;
  [[nodiscard]] virtual double thread_seconds() const = 0;  // processor time of the caller
  [[nodiscard]] virtual Usage usage() const = 0;
  [[nodiscard]] virtual int processors() const = 0;

  [[nodiscard]] static const Machine& system();
};

struct Limits {
  double budget_s{20};  // multiplied by MUSTER_BENCH_BUDGET
  int rounds_min{7};    // at least 6, the fewest that give a 95 % interval
};

// A value computed from each round.
struct Figure {
  std::string name;
  double tolerance{0.02};  // half of an interval that is narrow enough
  bool is_relative{true};  // `tolerance` is a fraction of the value
  bool is_claim{true};     // otherwise it is only shown and never asks for more rounds
  bool needs_quiet{true};  // other work on the machine changes it
  int digits{3};           // after the point
};

class Series {
 public:
  // Clock of a series: the thread's processor time where the work is one thread's.
  enum class Time { kThread, kWall };

  // Seconds of each variant in one round, by the index that add() returned.
  using Formula = std::function<double(std::span<const double> seconds)>;

  // Sums a value over the ranks of a group, so that all take the same decisions. Empty for one
  // process.
  using Sum = std::function<double(double)>;

  Series(
      std::string title,
      Limits limits,
      Time time,
      const Machine& machine = Machine::system(),
      Sum sum = {});

  // Adds a variant, timed by the series. `prepare` runs before each action and is not timed.
  std::size_t add(
      std::string name, std::function<void()> action, std::function<void()> prepare = {});

  // Adds a variant that returns its own figure, in any unit.
  std::size_t add_measured(std::string name, std::function<double()> action);

  // Adds a figure and returns its index.
  std::size_t add_figure(Figure figure, Formula formula);

  // Runs one round that does not count, then rounds until the figures are settled.
  void run();

  [[nodiscard]] Interval interval(std::size_t figure) const;

  // True if the claim's interval is narrow and its halves agree.
  [[nodiscard]] bool is_settled(std::size_t figure) const;

  // Median over all rounds, by the clock of the series.
  [[nodiscard]] double median_seconds(std::size_t variant) const;

  [[nodiscard]] std::size_t rounds() const { return rounds_.size(); }

  [[nodiscard]] std::size_t quiet_rounds() const;

  // Returns medians of the variants, the figures, and a line per claim.
  [[nodiscard]] std::string report() const;

 private:
  struct Variant {
    std::string name;
    std::function<double()> measured;
    std::function<void()> action;
    std::function<void()> prepare;
  };

  struct Round {
    std::vector<double> seconds;  // by the clock of the series
    std::vector<double> wall;
    bool is_quiet{false};
  };

  struct Computed {
    Figure figure;
    Formula formula;
  };

  [[nodiscard]] Round play(bool reversed) const;
  [[nodiscard]] bool agreed(bool value) const;
  [[nodiscard]] bool is_finished() const;
  [[nodiscard]] std::vector<double> samples(const Computed& figure) const;
  [[nodiscard]] std::string describe(const Computed& figure) const;
  void judge(Usage& since, std::vector<Round>& pending, bool is_last);

  std::string title_;
  Limits limits_;
  Time time_;
  const Machine& machine_;
  Sum sum_;
  std::vector<Variant> variants_;
  std::vector<Computed> figures_;
  std::vector<Round> rounds_;
};

// Returns "claim NAME VALUE ± HALF". `half` is at least half of the tolerance: a new process has
// other pages, which moves a figure by more than its interval in one process shows.
[[nodiscard]] std::string claim_line(const Figure& figure, const Interval& interval);

// Returns "claim NAME noisy".
[[nodiscard]] std::string noisy_line(const std::string& name);

}  // namespace muster::bench
