// SPDX-License-Identifier: Apache-2.0
#include <muster/common/text.h>
#include <muster/detect/spike_detector.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace muster::detect {

SpikeOptions loss_spike_options() {
  SpikeOptions options;
  options.subject = "loss";
  options.z_threshold = 6.0;
  // For a loss that has stopped moving: changes below a tenth of a percent are ignored.
  options.floor = {.absolute = 1e-6, .relative = 1e-3};
  return options;
}

SpikeOptions gradient_norm_spike_options() {
  SpikeOptions options;
  options.subject = "gradient_norm";
  options.logarithmic = true;
  options.z_threshold = 5.0;
  // In log units: a norm that varies by less than two percent.
  options.floor = {.absolute = 0.02, .relative = 0.0};
  return options;
}

SpikeDetector::SpikeDetector(SpikeOptions options)
    : options_(std::move(options)), window_(options_.window, options_.floor) {}

void SpikeDetector::reset() {
  window_.clear();
  highs_.clear();
  suspend();
}

void SpikeDetector::suspend() {
  frozen_.clear();
  recent_.clear();
  streak_ = false;
  alarming_ = false;
}

std::vector<Finding> SpikeDetector::observe(std::int64_t step, double value) {
  if (!std::isfinite(value) || (options_.logarithmic && value <= 0)) {
    return {};
  }
  const double judged = options_.logarithmic ? std::log(value) : value;
  if (window_.size() < options_.warmup) {
    window_.push(judged);
    return {};
  }
  const double z = window_.z(judged);
  const bool high = z > options_.z_threshold;
  std::vector<Finding> findings;
  ++count_;
  if (high && !streak_ && !is_known_high(judged)) {
    findings.push_back(describe("spike", Severity::kWarning, step, value, z));
  }
  if (update_episode(high)) {
    findings.push_back(describe("spike_persistent", Severity::kError, step, value, z));
  }
  remember(judged, high || alarming_);
  return findings;
}

bool SpikeDetector::is_known_high(double judged) {
  while (!highs_.empty() && highs_.front().first <= count_ - options_.known_span) {
    highs_.pop_front();
  }
  const double height = judged - window_.median();
  std::vector<double> heights;
  for (const auto& [count, known] : highs_) {
    heights.push_back(known);
  }
  highs_.emplace_back(count_, height);
  if (heights.size() < options_.known_highs) {
    return false;
  }
  const auto middle = heights.begin() + std::ssize(heights) / 2;
  std::nth_element(heights.begin(), middle, heights.end());
  return height <= options_.known_ratio * *middle;
}

bool SpikeDetector::update_episode(bool high) {
  streak_ = high;
  recent_.push_back(high);
  if (recent_.size() > static_cast<std::size_t>(options_.persist_window)) {
    recent_.erase(recent_.begin());
  }
  const auto highs = std::count(recent_.begin(), recent_.end(), true);
  if (!alarming_ && highs >= options_.persist_count) {
    alarming_ = true;
    return true;
  }
  alarming_ = alarming_ && highs > 0;
  return false;
}

void SpikeDetector::remember(double judged, bool freeze) {
  if (!freeze) {
    frozen_.clear();
    window_.push(judged);
    return;
  }
  frozen_.push_back(judged);
  if (frozen_.size() < static_cast<std::size_t>(options_.freeze_steps_max)) {
    return;
  }
  // This level is not going away: it is the measure from now on.
  window_.clear();
  for (const double value : frozen_) {
    window_.push(value);
  }
  frozen_.clear();
  recent_.clear();
  streak_ = false;
  alarming_ = false;
}

Finding SpikeDetector::describe(
    const char* rule, Severity severity, std::int64_t step, double value, double z) const {
  const double center = window_.median();
  const double usual = options_.logarithmic ? std::exp(center) : center;
  Finding finding;
  finding.rule = rule;
  finding.severity = severity;
  finding.step = step;
  finding.subject = options_.subject;
  finding.reason = concat(
      options_.subject,
      " ",
      general(value, 4),
      " at step ",
      step,
      " is ",
      fixed(z, 1),
      " robust deviations above its usual ",
      general(usual, 4),
      alarming_ ? ", and it stays high" : "");
  finding.inputs = {
      {"value", value},
      {"z", z},
      {"z_threshold", options_.z_threshold},
      {"median", usual},
      {"scale", window_.scale()},
      {"window", static_cast<double>(window_.size())}};
  return finding;
}

}  // namespace muster::detect
