// The values of one step, in exactly the order in which metric_catalog.cpp adds the columns.
#include "src/metric_catalog.h"

#include <muster/common/check.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace muster::agent {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

class Cursor {
 public:
  explicit Cursor(std::span<float> values) : values_(values) {}

  void put(double value) { values_[next_++] = static_cast<float>(value); }

  [[nodiscard]] std::size_t position() const { return next_; }

 private:
  std::span<float> values_;
  std::size_t next_{0};
};

double seconds(std::chrono::nanoseconds duration) {
  return std::chrono::duration<double>(duration).count();
}

double ratio(double part, double whole) {
  return whole > 0.0 ? part / whole : kNone;
}

// max_e(T_e / mean) - 1.
double maxvio(const std::vector<double>& counts) {
  const double total = std::accumulate(counts.begin(), counts.end(), 0.0);
  if (!(total > 0.0)) {
    return kNone;
  }
  const double mean = total / static_cast<double>(counts.size());
  return *std::max_element(counts.begin(), counts.end()) / mean - 1.0;
}

double clipped_heads(const Verdict& verdict) {
  std::ptrdiff_t heads = 0;
  for (const std::vector<double>& layer : verdict.head_gammas) {
    heads += std::count_if(layer.begin(), layer.end(), [](double gamma) { return gamma < 1.0; });
  }
  return static_cast<double>(heads);
}

void put_job(const StepFacts& facts, Cursor& out) {
  const ReducedLanes& lanes = facts.lanes;
  const Verdict& verdict = facts.verdict;
  out.put(verdict.loss);
  out.put(lanes.nonfinite_loss ? kNone : lanes.local_loss_max);
  out.put(verdict.gradient_norm);
  out.put(verdict.clip_factor);
  out.put(lanes.nonfinite_count);
  out.put(facts.learning_rate);
  out.put(lanes.token_count);
  out.put(ratio(lanes.token_count, seconds(facts.step_time)));
  out.put(verdict.skip ? 1.0 : 0.0);
  for (const std::vector<double>& layer : lanes.max_logits) {
    for (const double logit : layer) {
      out.put(std::isinf(logit) && logit < 0.0 ? kNone : logit);  // No rank saw the head.
    }
  }
  for (const std::vector<double>& layer : lanes.expert_counts) {
    out.put(maxvio(layer));
    for (const double tokens : layer) {
      out.put(tokens);
    }
  }
}

double variance(double squared_sum, double mean, double count) {
  return std::max(0.0, squared_sum / count - mean * mean);
}

// After a skipped step, and at the first one, there is no update to describe: no value.
void put_group(const StepFacts& facts, std::size_t g, bool has_second_moment, Cursor& out) {
  const optimizer::GroupUpdateStatistics& update = facts.lanes.update[g];
  const bool known = update.element_count > 0;
  const double count = known ? static_cast<double>(update.element_count) : kNone;
  const double update_rms = std::sqrt(update.update_squared_sum / count);
  const bool norm_known = std::isfinite(facts.verdict.gradient_norm);
  out.put(
      norm_known ? std::sqrt(facts.lanes.squared_norm[g]) * facts.verdict.gradient_scale : kNone);
  out.put(ratio(update_rms, facts.previous_learning_rate));
  out.put(
      known ? std::sqrt(ratio(update.update_squared_sum, update.parameter_squared_sum)) : kNone);
  out.put(known ? std::sqrt(update.parameter_squared_sum) : kNone);
  out.put(known ? update.parameter_abs_max : kNone);
  const double mean = update.momentum_sum / count;
  out.put(known ? std::sqrt(update.momentum_squared_sum) : kNone);
  out.put(known ? update.momentum_abs_max : kNone);
  out.put(mean);
  out.put(known ? variance(update.momentum_squared_sum, mean, count) : kNone);
  if (has_second_moment) {
    const double v_mean = update.second_moment_sum / count;
    out.put(v_mean);
    out.put(known ? variance(update.second_moment_squared_sum, v_mean, count) : kNone);
    out.put(known ? update.second_moment_abs_max : kNone);
  }
}

void put_rank(const StepFacts& facts, Cursor& out) {
  const auto phase = [&facts](Phase which) {
    return facts.phases[static_cast<std::size_t>(which)];
  };
  out.put(seconds(facts.step_time));
  for (const std::chrono::nanoseconds time : facts.phases) {
    out.put(seconds(time));
  }
  out.put(seconds(
      facts.step_time - phase(Phase::kExpertComm) - phase(Phase::kReduce) - phase(Phase::kVerdict) -
      phase(Phase::kGather)));
  out.put(facts.local_loss);
  out.put(facts.update_applied ? 1.0 : 0.0);
}

}  // namespace

void MetricCatalog::fill(const StepFacts& facts, std::span<float> values) const {
  Cursor out{values};
  if (job_scope_) {
    put_job(facts, out);
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      put_group(facts, g, groups_[g].has_second_moment, out);
    }
    out.put(clipped_heads(facts.verdict));
  }
  put_rank(facts, out);
  MUSTER_CHECK(out.position() + 1 == values.size(), "values follow the columns of the schema");
}

}  // namespace muster::agent
