// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/harness.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace muster::bench {

namespace {

constexpr double kOutside = 0.025;      // probability beyond either end of an interval
constexpr double kWindowSeconds = 0.3;  // the kernel counts busy time in ticks of 10 ms
constexpr double kTickSeconds = 0.02;
constexpr double kOthersShare = 0.05;  // of all processors
constexpr double kWaitedShare = 0.05;  // of wall time

// Ranks [k, n - 1 - k] of the sorted samples are a 95 % interval of the median: the largest k for
// which fewer than k + 1 of n fair coins come up with at most 2.5 %. Zero if there is none.
double rank_of_low_end(std::size_t n) {
  const auto count = static_cast<double>(n);
  double below = 0;
  double log_term = -count * std::log(2.0);  // log of the probability of k
  std::size_t k = 0;
  while (true) {
    below += std::exp(log_term);
    if (below > kOutside) {
      return k == 0 ? 0 : static_cast<double>(k) - 1;
    }
    log_term += std::log((count - static_cast<double>(k)) / (static_cast<double>(k) + 1));
    ++k;
  }
}

// Samples per independent one: 1 + 2 * sum of the autocorrelations of their signs, up to the first
// that chance explains.
double correlation_time(std::span<const double> samples, double center) {
  const std::size_t n = samples.size();
  if (n < 16) {
    return 1;
  }
  const auto sign = [&](std::size_t i) { return samples[i] < center ? -1.0 : 1.0; };
  double time = 1;
  for (std::size_t lag = 1; lag < n / 3; ++lag) {
    double sum = 0;
    for (std::size_t i = lag; i < n; ++i) {
      sum += sign(i) * sign(i - lag);
    }
    const double correlation = sum / static_cast<double>(n);
    if (correlation < 1 / std::sqrt(static_cast<double>(n))) {
      break;
    }
    time += 2 * correlation;
  }
  return time;
}

// Half of the interval of a normal distribution whose deciles are as far apart. With two modes the
// ranks alone would show the narrow interval of the larger one.
double half_by_spread(std::span<const double> sorted) {
  const std::size_t n = sorted.size();
  if (n < 6) {
    return 0;
  }
  constexpr double kDecilesPerSigma = 2.563;
  constexpr double kHalfPerSigma = 1.96 * 1.2533;
  const std::size_t tail = n / 10;
  const double sigma = (sorted[n - 1 - tail] - sorted[tail]) / kDecilesPerSigma;
  return kHalfPerSigma * sigma / std::sqrt(static_cast<double>(n));
}

double budget_factor() {
  const char* text = std::getenv("MUSTER_BENCH_BUDGET");  // NOLINT(concurrency-mt-unsafe)
  const double factor = text == nullptr ? 1 : std::strtod(text, nullptr);
  return factor > 0 ? factor : 1;
}

double width_allowed(const Figure& figure, double value) {
  return figure.is_relative ? figure.tolerance * std::abs(value) : figure.tolerance;
}

[[gnu::format(printf, 1, 2)]] std::string format(const char* pattern, ...) {
  std::array<char, 256> text{};
  va_list values;
  va_start(values, pattern);
  std::vsnprintf(text.data(), text.size(), pattern, values);
  va_end(values);
  return text.data();
}

}  // namespace

double Interval::half() const {
  return std::max(high - value, value - low);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

void must(const Status& status) {
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.to_string().c_str());
    std::exit(1);  // NOLINT(concurrency-mt-unsafe)
  }
}

Interval median_interval(std::span<const double> samples) {
  std::vector<double> sorted(samples.begin(), samples.end());
  std::sort(sorted.begin(), sorted.end());
  const double value = median(sorted);
  const double middle = static_cast<double>(sorted.size() - 1) / 2;
  const double reach = std::max(0.5, middle - rank_of_low_end(sorted.size()));
  const double wider = reach * std::sqrt(correlation_time(samples, value));
  const auto low = static_cast<std::size_t>(std::max(0.0, std::floor(middle - wider)));
  const std::size_t last = sorted.size() - 1;
  const double by_spread = half_by_spread(sorted) * wider / reach;
  return {
      value,
      std::min(sorted[low], value - by_spread),
      std::max(sorted[last - low], value + by_spread)};
}

std::string claim_line(const Figure& figure, const Interval& interval) {
  const double half = std::max(interval.half(), width_allowed(figure, interval.value) / 2);
  return format(
      "claim %s %.*f ± %.*f\n",
      figure.name.c_str(),
      figure.digits,
      interval.value,
      figure.digits,
      half);
}

std::string noisy_line(const std::string& name) {
  return "claim " + name + " noisy\n";
}

Series::Series(std::string title, Limits limits, Time time, const Machine& machine, Sum sum)
    : title_(std::move(title)),
      limits_(limits),
      time_(time),
      machine_(machine),
      sum_(std::move(sum)) {
  limits_.budget_s *= budget_factor();
}

std::size_t Series::add(
    std::string name, std::function<void()> action, std::function<void()> prepare) {
  variants_.push_back({std::move(name), {}, std::move(action), std::move(prepare)});
  return variants_.size() - 1;
}

std::size_t Series::add_measured(std::string name, std::function<double()> action) {
  variants_.push_back({std::move(name), std::move(action), {}, {}});
  return variants_.size() - 1;
}

std::size_t Series::add_figure(Figure figure, Formula formula) {
  figures_.push_back({std::move(figure), std::move(formula)});
  return figures_.size() - 1;
}

Series::Round Series::play(bool reversed) const {
  Round round;
  round.seconds.resize(variants_.size());
  round.wall.resize(variants_.size());
  for (std::size_t turn = 0; turn < variants_.size(); ++turn) {
    const std::size_t i = reversed ? variants_.size() - 1 - turn : turn;
    if (variants_[i].measured) {
      round.seconds[i] = round.wall[i] = variants_[i].measured();
      continue;
    }
    if (variants_[i].prepare) {
      variants_[i].prepare();
    }
    const double wall = machine_.wall_seconds();
    const double thread = machine_.thread_seconds();
    variants_[i].action();
    const double cpu = machine_.thread_seconds() - thread;
    round.wall[i] = machine_.wall_seconds() - wall;
    round.seconds[i] = time_ == Time::kThread ? cpu : round.wall[i];
  }
  return round;
}

bool Series::agreed(bool value) const {
  return sum_ ? sum_(value ? 1 : 0) > 0 : value;
}

// Counts the pending rounds as quiet if neither other work nor waiting took a share of their time.
void Series::judge(Usage& since, std::vector<Round>& pending, bool is_last) {
  const Usage now = machine_.usage();
  const double wall = now.wall - since.wall;
  if (!agreed(is_last || wall >= kWindowSeconds)) {
    return;
  }
  const double own = sum_ ? sum_(now.own - since.own) : now.own - since.own;
  const double others = now.busy - since.busy - own;
  const bool disturbed = others > kOthersShare * machine_.processors() * wall + kTickSeconds ||
                         now.waited - since.waited > kWaitedShare * wall;
  const bool is_quiet = !agreed(disturbed);
  for (Round& round : pending) {
    round.is_quiet = is_quiet;
    rounds_.push_back(std::move(round));
  }
  pending.clear();
  since = now;
}

bool Series::is_finished() const {
  bool settled = rounds_.size() >= static_cast<std::size_t>(limits_.rounds_min);
  for (std::size_t i = 0; i < figures_.size(); ++i) {
    settled = settled && (!figures_[i].figure.is_claim || is_settled(i));
  }
  return !agreed(!settled);
}

void Series::run() {
  rounds_.clear();
  static_cast<void>(play(false));
  const double begun = machine_.wall_seconds();
  Usage since = machine_.usage();
  std::vector<Round> pending;
  std::size_t next = 0;  // rounds at which the figures are looked at; rarely, as each look can err
  bool reversed = true;
  while (true) {
    pending.push_back(play(reversed));
    reversed = !reversed;
    const bool is_spent = agreed(machine_.wall_seconds() - begun >= limits_.budget_s);
    judge(since, pending, is_spent);
    if (is_spent || (pending.empty() && rounds_.size() >= next)) {
      if (is_spent || is_finished()) {
        return;
      }
      next = rounds_.size() + rounds_.size() / 3 + 1;
    }
  }
}

std::vector<double> Series::samples(const Computed& figure) const {
  std::vector<double> values;
  for (const Round& round : rounds_) {
    if (round.is_quiet || !figure.figure.needs_quiet) {
      values.push_back(figure.formula(round.seconds));
    }
  }
  return values;
}

Interval Series::interval(std::size_t figure) const {
  const std::vector<double> values = samples(figures_[figure]);
  return values.empty() ? Interval{} : median_interval(values);
}

bool Series::is_settled(std::size_t figure) const {
  const std::vector<double> values = samples(figures_[figure]);
  if (values.size() < static_cast<std::size_t>(std::max(limits_.rounds_min, 6))) {
    return false;
  }
  const Interval all = median_interval(values);
  const double allowed = width_allowed(figures_[figure].figure, all.value);
  const std::span<const double> span{values};
  const Interval first = median_interval(span.first(values.size() / 2));
  const Interval second = median_interval(span.subspan(values.size() / 2));
  const bool is_apart = first.high < second.low || second.high < first.low;
  return all.half() <= allowed && !(is_apart && std::abs(first.value - second.value) > allowed);
}

double Series::median_seconds(std::size_t variant) const {
  std::vector<double> seconds;
  for (const Round& round : rounds_) {
    seconds.push_back(round.seconds[variant]);
  }
  return median(std::move(seconds));
}

std::size_t Series::quiet_rounds() const {
  return static_cast<std::size_t>(
      std::count_if(rounds_.begin(), rounds_.end(), [](const Round& r) { return r.is_quiet; }));
}

std::string Series::describe(const Computed& figure) const {
  std::vector<double> all;
  std::vector<double> by_wall;
  for (const Round& round : rounds_) {
    all.push_back(figure.formula(round.seconds));
    by_wall.push_back(figure.formula(round.wall));
  }
  const int digits = figure.figure.digits;
  const std::vector<double> counted = samples(figure);
  std::string text = "  " + figure.figure.name + ": ";
  if (!counted.empty()) {
    const Interval found = median_interval(counted);
    text += format(
        "%.*f in [%.*f, %.*f], ", digits, found.value, digits, found.low, digits, found.high);
  }
  return text + format(
                    "of all rounds %.*f, by wall time %.*f\n",
                    digits,
                    median(std::move(all)),
                    digits,
                    median(std::move(by_wall)));
}

std::string Series::report() const {
  std::string text =
      title_ + format(": %zu rounds, %zu of them quiet\n", rounds_.size(), quiet_rounds());
  for (std::size_t i = 0; i < variants_.size(); ++i) {
    if (variants_[i].measured) {
      continue;
    }
    std::vector<double> wall;
    for (const Round& round : rounds_) {
      wall.push_back(round.wall[i]);
    }
    text += format(
        "  %-34s %10.5g ms, wall %10.5g ms\n",
        variants_[i].name.c_str(),
        1e3 * median_seconds(i),
        1e3 * median(std::move(wall)));
  }
  for (const Computed& figure : figures_) {
    text += describe(figure);
  }
  for (std::size_t i = 0; i < figures_.size(); ++i) {
    const Figure& figure = figures_[i].figure;
    if (figure.is_claim) {
      text += is_settled(i) ? claim_line(figure, interval(i)) : noisy_line(figure.name);
    }
  }
  return text;
}

}  // namespace muster::bench
