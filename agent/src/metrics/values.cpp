// The values of one step, in exactly the order in which metric_catalog.cpp adds the columns.
#include "agent/src/metrics/catalog.h"
#include "agent/src/metrics/layer_metrics.h"

#include <muster/common/check.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace muster::agent {
namespace {

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
  out.put(verdict.loss_scale);
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

// The columns of one group. After a skipped step, and at the first one, there is no update to
// describe: no value.
class GroupColumns {
 public:
  GroupColumns(const StepFacts& facts, std::size_t g, Cursor& out)
      : facts_(facts),
        g_(g),
        update_(facts.lanes.update[g]),
        count_(update_.element_count > 0 ? static_cast<double>(update_.element_count) : kNone),
        out_(out) {}

  void gradient(bool clips_groups) {
    const Verdict& verdict = facts_.verdict;
    const bool norm_known = std::isfinite(verdict.gradient_norm);
    out_.put(
        norm_known ? std::sqrt(facts_.lanes.squared_norm[g_]) * verdict.gradient_scale : kNone);
    if (clips_groups) {
      out_.put(
          verdict.group_clip_factors.empty() ? verdict.clip_factor
                                             : verdict.group_clip_factors[g_]);
    }
  }

  void update() {
    const double rate = facts_.previous_learning_rate;
    out_.put(ratio(std::sqrt(update_.elements.update_squared_sum / count_), rate));
    put_known(ratio(update_.elements.update_abs_max, rate));
    put_known(std::sqrt(
        ratio(update_.elements.update_squared_sum, update_.elements.parameter_squared_sum)));
    put_known(std::sqrt(update_.elements.parameter_squared_sum));
    put_known(update_.elements.parameter_abs_max);
  }

  void momentum() {
    const double mean = update_.elements.momentum_sum / count_;
    put_known(std::sqrt(update_.elements.momentum_squared_sum));
    put_known(update_.elements.momentum_abs_max);
    out_.put(mean);
    put_known(variance(update_.elements.momentum_squared_sum, mean, count_));
    const double norms =
        std::sqrt(update_.elements.momentum_squared_sum * update_.elements.gradient_squared_sum);
    out_.put(norms > 0.0 ? update_.elements.momentum_gradient_sum / norms : kNone);
  }

  void second_moment(double beta2) {
    const double mean = update_.elements.second_moment_sum / count_;
    out_.put(mean);
    put_known(variance(update_.elements.second_moment_squared_sum, mean, count_));
    put_known(update_.elements.second_moment_abs_max);
    out_.put(static_cast<double>(update_.elements.second_moment_tiny_count) / count_);
    // ln(mean v before / mean v after) / -ln beta2: 1 when nothing came in, below 0 when v grew.
    const double shrunk =
        ratio(update_.elements.second_moment_before_sum, update_.elements.second_moment_sum);
    const bool defined = shrunk > 0.0 && beta2 > 0.0;
    out_.put(defined ? std::log(shrunk) / -std::log(beta2) : kNone);
    const double rms_t = std::sqrt(update_.elements.staleness_sum / count_);
    out_.put(rms_t);
    // g^2 <= v / (1 - beta2), so this form lies in [0, 1] whatever beta2 is.
    out_.put(rms_t * std::sqrt(1.0 - beta2));
  }

  void blocks() {
    const bool any = update_.blocks.block_count > 0;
    const double blocks = any ? static_cast<double>(update_.blocks.block_count) : kNone;
    out_.put(update_.blocks.direction_norm_sum / blocks);
    out_.put(update_.blocks.effective_rank_sum / blocks);
    out_.put(any ? update_.blocks.effective_rank_min : kNone);
    out_.put(update_.blocks.orthogonality_error_sum / blocks);
    out_.put(any ? update_.blocks.orthogonality_error_max : kNone);
    // Blocks that were not finite are in no mean.
    put_known(static_cast<double>(update_.blocks.nonfinite_blocks));
    put_known(static_cast<double>(update_.blocks.recomputed_blocks));
  }

 private:
  void put_known(double value) { out_.put(update_.element_count > 0 ? value : kNone); }

  const StepFacts& facts_;
  const std::size_t g_;
  const optimizer::GroupUpdateStatistics& update_;
  const double count_;  // NaN when there is none
  Cursor& out_;
};

void put_group(
    const StepFacts& facts,
    std::size_t g,
    const GroupInfo& group,
    const MetricCatalog::Scope& scope,
    Cursor& out) {
  GroupColumns columns{facts, g, out};
  columns.gradient(scope.clips_groups);
  if (!scope.statistics) {
    return;
  }
  columns.update();
  if (group.has_momentum) {
    columns.momentum();
  }
  if (group.has_second_moment) {
    columns.second_moment(group.beta2);
  }
  if (group.has_blocks) {
    columns.blocks();
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
  if (scope_.job) {
    put_job(facts, out);
    put_layers(facts, layers_, out);
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      put_group(facts, g, groups_[g], scope_, out);
    }
    out.put(clipped_heads(facts.verdict));
  }
  put_rank(facts, out);
  put_ep_rank(facts, layers_, out);
  MUSTER_CHECK(out.position() + 1 == values.size(), "values follow the columns of the schema");
}

}  // namespace muster::agent
