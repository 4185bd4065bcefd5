#include <muster/detect/job_detector.h>

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
      loss_(options_.loss),
      gradient_norm_(options_.gradient_norm),
      max_logit_(options_.max_logit) {}

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
  loss_.reset();
  gradient_norm_.reset();
  max_logit_.reset();
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
  append(findings, max_logit_.observe(observation));
  // The numbers of a skipped step describe a batch that training has left out.
  if (!observation.skipped && observation.nonfinite_count <= 0) {
    append(findings, loss_.observe(observation.step, observation.loss));
    append(findings, gradient_norm_.observe(observation.step, observation.gradient_norm));
  }
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
