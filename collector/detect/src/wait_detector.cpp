// SPDX-License-Identifier: Apache-2.0
#include <muster/common/text.h>
#include <muster/detect/wait_detector.h>

#include <algorithm>
#include <cmath>
#include <string>

namespace muster::detect {

namespace {

// Destroys the order of `values`; 0 when empty.
double median(std::vector<double>& values) {
  if (values.empty()) {
    return 0;
  }
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : 0.5 * (values[middle - 1] + values[middle]);
}

struct Spread {
  double median{0};
  double mad{0};
};

Spread spread_of_others(const std::vector<double>& columns, std::size_t one) {
  std::vector<double> others;
  for (std::size_t i = 0; i < columns.size(); ++i) {
    if (i != one) {
      others.push_back(columns[i]);
    }
  }
  Spread spread;
  spread.median = median(others);
  for (double& value : others) {
    value = std::abs(value - spread.median);
  }
  spread.mad = median(others);
  return spread;
}

Finding describe(
    std::size_t column,
    std::int64_t step,
    double seconds,
    const Spread& others,
    const WaitOptions& options) {
  Finding finding;
  finding.rule = "ep_rank_waited_for";
  finding.severity = Severity::kWarning;
  finding.step = step;
  finding.subject = "EP rank " + std::to_string(column);
  finding.reason = concat(
      "EP rank ",
      column,
      " is waited for ",
      general(1e3 * seconds, 3),
      " ms a step, the others ",
      general(1e3 * others.median, 3),
      " ms (median, MAD ",
      general(1e3 * others.mad, 2),
      " ms), ",
      options.steps,
      " steps in a row up to step ",
      step,
      ": it is the straggler; compare its compute time and look at its machine");
  finding.inputs = {
      {"ep_rank", static_cast<double>(column)},
      {"wait_seconds", seconds},
      {"others_median_seconds", others.median},
      {"others_mad_seconds", others.mad},
      {"mads", options.mads},
      {"steps", static_cast<double>(options.steps)}};
  return finding;
}

}  // namespace

std::vector<Finding> WaitDetector::observe(const WaitRow& row) {
  std::vector<Finding> findings;
  if (row.seconds.empty() || (generation_ && row.generation < *generation_)) {
    return findings;
  }
  if (!generation_ || row.generation > *generation_) {
    begin(row);
  }
  if (row.seconds.size() != width_ || row.step <= judged_step_) {
    return findings;
  }
  senders_.insert(row.rank);
  Step& step = waiting_[row.step];
  if (!step.ranks.insert(row.rank).second) {
    return findings;
  }
  step.columns.resize(width_, 0.0);
  for (std::size_t i = 0; i < width_; ++i) {
    step.columns[i] += row.seconds[i];
  }
  judge_waiting(findings);
  return findings;
}

void WaitDetector::begin(const WaitRow& row) {
  generation_ = row.generation;
  width_ = row.seconds.size();
  senders_.clear();
  waiting_.clear();
  judged_step_ = -1;
  streaks_.assign(width_, Streak{});
}

// An EP group has as many members as columns: before so many have sent anything, rows are missing.
bool WaitDetector::complete(const Step& step) const {
  return senders_.size() >= width_ && step.ranks.size() == senders_.size();
}

void WaitDetector::judge_waiting(std::vector<Finding>& findings) {
  while (!waiting_.empty()) {
    const auto lowest = waiting_.begin();
    const bool ready = complete(lowest->second);
    if (!ready && waiting_.size() < options_.reorder_steps) {
      return;
    }
    if (ready) {
      judge(lowest->first, lowest->second.columns, findings);
    }
    judged_step_ = lowest->first;
    waiting_.erase(lowest);
  }
}

void WaitDetector::judge(
    std::int64_t step, const std::vector<double>& columns, std::vector<Finding>& findings) {
  if (!std::all_of(columns.begin(), columns.end(), [](double x) { return std::isfinite(x); })) {
    return;
  }
  for (std::size_t i = 0; i < columns.size(); ++i) {
    const Spread others = spread_of_others(columns, i);
    const double mad =
        std::max({others.mad, options_.mad_relative_min * others.median, options_.mad_seconds_min});
    const bool high = columns[i] > others.median + options_.mads * mad;
    if (streaks_[i].update(high, options_.steps)) {
      findings.push_back(describe(i, step, columns[i], others, options_));
    }
  }
}

}  // namespace muster::detect
