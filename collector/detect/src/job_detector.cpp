// SPDX-License-Identifier: Apache-2.0
#include <muster/detect/job_detector.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

namespace muster::detect {

namespace {

constexpr std::size_t kGapsMax = 64;

void append(std::vector<Finding>& to, std::vector<Finding> from) {
  to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

}  // namespace

JobDetector::JobDetector(JobDetectorOptions options)
    : options_(std::move(options)),
      flat_(options_.flat),
      max_logit_(options_.max_logit),
      reach_(options_.reach),
      expert_imbalance_(options_.expert_imbalance) {}

std::vector<Finding> JobDetector::observe(const StepObservation& observation) {
  std::vector<Finding> findings;
  if (generation_ && observation.generation < *generation_) {
    ++late_count_;
    return findings;
  }
  if (!generation_ || observation.generation > *generation_) {
    findings = flush();
    begin_generation(observation.generation);
  }
  if (!next_step_) {
    next_step_ = observation.step;
  }
  if (observation.step < *next_step_) {
    observe_past(observation, findings);
    return findings;
  }
  if (!waiting_.emplace(observation.step, observation).second) {
    ++duplicate_count_;
    return findings;
  }
  judge_waiting(findings);
  return findings;
}

std::vector<Finding> JobDetector::flush() {
  std::vector<Finding> findings;
  while (!waiting_.empty()) {
    judge_lowest(findings);
  }
  return findings;
}

void JobDetector::begin_generation(std::int64_t generation) {
  generation_ = generation;
  next_step_.reset();
  given_up_.clear();
  nonfinite_.reset();
  flat_.reset();
  max_logit_.reset();
  reach_.reset();
  expert_imbalance_.reset();
  modes_.begin(generation);
  baselines_.clear();
  baseline_key_.clear();
}

void JobDetector::judge_waiting(std::vector<Finding>& findings) {
  while (!waiting_.empty() &&
         (waiting_.begin()->first == *next_step_ || waiting_.size() >= options_.reorder_steps)) {
    judge_lowest(findings);
  }
}

void JobDetector::judge_lowest(std::vector<Finding>& findings) {
  const auto lowest = waiting_.begin();
  give_up(*next_step_, lowest->first);
  judge(lowest->second, findings);
  next_step_ = lowest->first + 1;
  waiting_.erase(lowest);
}

void JobDetector::judge(const StepObservation& observation, std::vector<Finding>& findings) {
  append(findings, nonfinite_.observe(observation));
  modes_.observe(observation);
  append(findings, max_logit_.observe(observation, modes_));
  Baseline& baseline = baseline_of(observation.step);
  // The numbers of a skipped step describe a batch that training has left out.
  if (!observation.skipped && observation.nonfinite_count <= 0) {
    append(findings, baseline.loss.observe(observation.step, observation.loss));
    append(findings, baseline.gradient_norm.observe(observation.step, observation.gradient_norm));
    append(findings, flat_.observe(observation));
    append(findings, reach_.observe(observation, modes_));
    append(findings, expert_imbalance_.observe(observation));
  }
}

JobDetector::Baseline& JobDetector::baseline_of(std::int64_t step) {
  const std::vector<int>& key = modes_.all();
  const auto left = baselines_.find(baseline_key_);
  if (key != baseline_key_ && left != baselines_.end()) {
    left->second.loss.suspend();
    left->second.gradient_norm.suspend();
  }
  baseline_key_ = key;
  const auto found = baselines_.find(key);
  if (found == baselines_.end() && baselines_.size() >= options_.baselines_max) {
    baselines_.erase(std::min_element(
        baselines_.begin(), baselines_.end(), [](const auto& one, const auto& other) {
          return one.second.used_step < other.second.used_step;
        }));
  }
  Baseline& baseline =
      baselines_
          .try_emplace(
              key, Baseline{SpikeDetector{options_.loss}, SpikeDetector{options_.gradient_norm}})
          .first->second;
  baseline.used_step = step;
  return baseline;
}

void JobDetector::observe_past(const StepObservation& observation, std::vector<Finding>& findings) {
  auto gap = given_up_.upper_bound(observation.step);
  if (gap == given_up_.begin() || std::prev(gap)->second <= observation.step) {
    ++duplicate_count_;
    return;
  }
  // Take the step out of its gap, so that it counts once.
  gap = std::prev(gap);
  const auto [begin, end] = *gap;
  given_up_.erase(gap);
  give_up(begin, observation.step);
  give_up(observation.step + 1, end);
  ++late_count_;
  append(findings, find_nonfinite(observation));
}

void JobDetector::give_up(std::int64_t step_begin, std::int64_t step_end) {
  if (step_begin >= step_end) {
    return;
  }
  given_up_.emplace(step_begin, step_end);
  if (given_up_.size() > kGapsMax) {
    given_up_.erase(given_up_.begin());
  }
}

}  // namespace muster::detect
