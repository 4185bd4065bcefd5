// SPDX-License-Identifier: Apache-2.0
// Metrics of a norm and statistics group: gradient, update, momentum, second moment, Muon's blocks.
#pragma once

#include "agent/src/metrics/job_metrics.h"
#include "agent/src/metrics/metric.h"
#include "agent/src/metrics/step_facts.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

namespace muster::agent {

// One group in one step. After a skipped step, and at the first one, there is no update to
// describe: `count` is NaN, and every statistic is kNone.
struct GroupView {
  GroupView(const StepFacts& facts, std::size_t position, double beta2_of_group)
      : step(facts),
        group(position),
        beta2(beta2_of_group),
        elements(facts.lanes.update[position].elements),
        blocks(facts.lanes.update[position].blocks) {
    const std::int64_t elements_counted = facts.lanes.update[position].element_count;
    count = elements_counted > 0 ? static_cast<double>(elements_counted) : kNone;
  }

  [[nodiscard]] double known(double value) const { return count > 0 ? value : kNone; }

  [[nodiscard]] double momentum_mean() const { return elements.momentum_sum / count; }

  [[nodiscard]] double second_moment_mean() const { return elements.second_moment_sum / count; }

  [[nodiscard]] double rms_t() const { return std::sqrt(elements.staleness_sum / count); }

  [[nodiscard]] bool has_blocks() const { return blocks.block_count > 0; }

  [[nodiscard]] double variance(double squared_sum, double mean) const {
    return known(std::max(0.0, squared_sum / count - mean * mean));
  }

  // Share of the changes of codes that did not take place; kNone without 8-bit states.
  [[nodiscard]] static double stuck_share(double change, double motion) {
    return change > 0.0 ? 1.0 - motion / change : kNone;
  }

  // Over the blocks of the group that were finite.
  [[nodiscard]] double block_mean(double sum) const {
    return sum / (has_blocks() ? static_cast<double>(blocks.block_count) : kNone);
  }

  const StepFacts& step;
  std::size_t group;
  double beta2;
  const kernels::UpdateStatistics& elements;
  const optimizer::BlockStatistics& blocks;
  double count;
};

inline constexpr std::array kGroupGradientMetrics{Metric<GroupView>{
    kGradNorm, [](const GroupView& view) {
      const Verdict& verdict = view.step.verdict;
      const bool norm_known = std::isfinite(verdict.gradient_norm);
      return norm_known
                 ? std::sqrt(view.step.lanes.squared_norm[view.group]) * verdict.gradient_scale
                 : kNone;
    }}};

inline constexpr std::array kGroupClipMetrics{Metric<GroupView>{
    kGradClipRatio, [](const GroupView& view) {
      const Verdict& verdict = view.step.verdict;
      return verdict.group_clip_factors.empty() ? verdict.clip_factor
                                                : verdict.group_clip_factors[view.group];
    }}};

inline constexpr std::array kGroupUpdateMetrics{
    Metric<GroupView>{
        {"train_update_rms", "1", MetricKind::kInstant, MetricScope::kJob},
        [](const GroupView& view) {
          return ratio(
              std::sqrt(view.elements.update_squared_sum / view.count),
              view.step.previous_learning_rate);
        }},
    Metric<GroupView>{
        {"train_update_abs_max", "1", MetricKind::kInstant, MetricScope::kJob},
        [](const GroupView& view) {
          return view.known(ratio(view.elements.update_abs_max, view.step.previous_learning_rate));
        }},
    Metric<GroupView>{
        {"train_update_param_ratio", "ratio", MetricKind::kRatio, MetricScope::kJob},
        [](const GroupView& view) {
          return view.known(std::sqrt(
              ratio(view.elements.update_squared_sum, view.elements.parameter_squared_sum)));
        }},
    Metric<GroupView>{
        {"train_param_norm", "1", MetricKind::kInstant, MetricScope::kJob},
        [](const GroupView& view) {
          return view.known(std::sqrt(view.elements.parameter_squared_sum));
        }},
    Metric<GroupView>{
        {"train_param_abs_max", "1", MetricKind::kInstant, MetricScope::kJob},
        [](const GroupView& view) { return view.known(view.elements.parameter_abs_max); }},
    Metric<GroupView>{
        {"train_update_withheld", "count", MetricKind::kDelta, MetricScope::kJob},
        [](const GroupView& view) {
          return view.known(static_cast<double>(view.elements.withheld_count));
        }}};

inline constexpr std::array kMomentumMetrics{
    Metric<GroupView>{
        {"train_momentum_norm", "1", MetricKind::kInstant, MetricScope::kJob},
        [](const GroupView& view) {
          return view.known(std::sqrt(view.elements.momentum_squared_sum));
        }},
    Metric<GroupView>{
        {"train_momentum_abs_max", "1", MetricKind::kInstant, MetricScope::kJob},
        [](const GroupView& view) { return view.known(view.elements.momentum_abs_max); }},
    Metric<GroupView>{
        {"train_momentum_mean", "1", MetricKind::kInstant, MetricScope::kJob},
        [](const GroupView& view) { return view.momentum_mean(); }},
    Metric<GroupView>{
        {"train_momentum_variance", "1", MetricKind::kInstant, MetricScope::kJob},
        [](const GroupView& view) {
          return view.variance(view.elements.momentum_squared_sum, view.momentum_mean());
        }},
    Metric<GroupView>{
        {"train_momentum_gradient_cosine", "1", MetricKind::kInstant, MetricScope::kJob},
        [](const GroupView& view) {
          return ratio(
              view.elements.momentum_gradient_sum,
              std::sqrt(view.elements.momentum_squared_sum * view.elements.gradient_squared_sum));
        }},
    Metric<GroupView>{
        {"train_momentum_stuck_ratio", "ratio", MetricKind::kRatio, MetricScope::kJob},
        [](const GroupView& view) {
          return GroupView::stuck_share(
              view.elements.momentum_code_change_sum, view.elements.momentum_code_motion_sum);
        }}};

inline constexpr std::array kSecondMomentMetrics{
    Metric<GroupView>{
        {"train_adam_v_mean", "1", MetricKind::kInstant, MetricScope::kJob},
        [](const GroupView& view) { return view.second_moment_mean(); }},
    Metric<GroupView>{
        {"train_adam_v_variance", "1", MetricKind::kInstant, MetricScope::kJob},
        [](const GroupView& view) {
          return view.variance(view.elements.second_moment_squared_sum, view.second_moment_mean());
        }},
    Metric<GroupView>{
        {"train_adam_v_abs_max", "1", MetricKind::kInstant, MetricScope::kJob},
        [](const GroupView& view) { return view.known(view.elements.second_moment_abs_max); }},
    Metric<GroupView>{
        {"train_adam_v_tiny_ratio", "ratio", MetricKind::kRatio, MetricScope::kJob},
        [](const GroupView& view) {
          return static_cast<double>(view.elements.second_moment_tiny_count) / view.count;
        }},
    // ln(mean v before / mean v after) / -ln beta2: 1 without any gradient, negative if v grew.
    Metric<GroupView>{
        {"train_adam_v_decay_saturation", "1", MetricKind::kInstant, MetricScope::kJob},
        [](const GroupView& view) {
          const double shrunk =
              ratio(view.elements.second_moment_before_sum, view.elements.second_moment_sum);
          const bool defined = shrunk > 0.0 && view.beta2 > 0.0;
          return defined ? std::log(shrunk) / -std::log(view.beta2) : kNone;
        }},
    Metric<GroupView>{
        {"train_adam_rms_t", "1", MetricKind::kInstant, MetricScope::kJob},
        [](const GroupView& view) { return view.rms_t(); }},
    // g^2 <= v / (1 - beta2), so this is in [0, 1] for any beta2.
    Metric<GroupView>{
        {"train_adam_staleness_ratio", "ratio", MetricKind::kRatio, MetricScope::kJob},
        [](const GroupView& view) { return view.rms_t() * std::sqrt(1.0 - view.beta2); }},
    Metric<GroupView>{
        {"train_adam_v_stuck_ratio", "ratio", MetricKind::kRatio, MetricScope::kJob},
        [](const GroupView& view) {
          return GroupView::stuck_share(
              view.elements.second_moment_code_change_sum,
              view.elements.second_moment_code_motion_sum);
        }}};

// Blocks that were not finite are part of no mean.
inline constexpr std::array kBlockMetrics{
    Metric<GroupView>{
        {"train_muon_direction_norm", "1", MetricKind::kInstant, MetricScope::kJob},
        [](const GroupView& view) { return view.block_mean(view.blocks.direction_norm_sum); }},
    Metric<GroupView>{
        {"train_muon_effective_rank_ratio", "ratio", MetricKind::kRatio, MetricScope::kJob},
        [](const GroupView& view) { return view.block_mean(view.blocks.effective_rank_sum); }},
    Metric<GroupView>{
        {"train_muon_effective_rank_min_ratio", "ratio", MetricKind::kRatio, MetricScope::kJob},
        [](const GroupView& view) {
          return view.has_blocks() ? view.blocks.effective_rank_min : kNone;
        }},
    Metric<GroupView>{
        {"train_muon_orthogonality_error", "1", MetricKind::kInstant, MetricScope::kJob},
        [](const GroupView& view) { return view.block_mean(view.blocks.orthogonality_error_sum); }},
    Metric<GroupView>{
        {"train_muon_orthogonality_error_max", "1", MetricKind::kInstant, MetricScope::kJob},
        [](const GroupView& view) {
          return view.has_blocks() ? view.blocks.orthogonality_error_max : kNone;
        }},
    Metric<GroupView>{
        {"train_muon_nonfinite_blocks", "count", MetricKind::kDelta, MetricScope::kJob},
        [](const GroupView& view) {
          return view.known(static_cast<double>(view.blocks.nonfinite_blocks));
        }},
    Metric<GroupView>{
        {"train_muon_recomputed_blocks", "count", MetricKind::kDelta, MetricScope::kJob},
        [](const GroupView& view) {
          return view.known(static_cast<double>(view.blocks.recomputed_blocks));
        }}};

}  // namespace muster::agent
