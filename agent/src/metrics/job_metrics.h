// SPDX-License-Identifier: Apache-2.0
// Metrics of the whole job: the verdict, logits per head and tokens per expert.
#pragma once

#include "agent/src/metrics/metric.h"
#include "agent/src/metrics/step_facts.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <numeric>
#include <vector>

namespace muster::agent {

// Published for the job and for each group.
inline constexpr MetricFamily kGradNorm{
    "train_grad_norm", "1", MetricKind::kInstant, MetricScope::kJob};
inline constexpr MetricFamily kGradClipRatio{
    "train_grad_clip_ratio", "ratio", MetricKind::kRatio, MetricScope::kJob};

inline constexpr std::array kJobMetrics{
    Metric<StepFacts>{
        {"train_loss_nats", "nats", MetricKind::kInstant, MetricScope::kJob},
        [](const StepFacts& step) { return step.verdict.loss; }},
    Metric<StepFacts>{
        {"train_loss_local_max_nats", "nats", MetricKind::kInstant, MetricScope::kJob},
        [](const StepFacts& step) {
          return step.lanes.nonfinite_loss ? kNone : step.lanes.local_loss_max;
        }},
    Metric<StepFacts>{kGradNorm, [](const StepFacts& step) { return step.verdict.gradient_norm; }},
    Metric<StepFacts>{
        kGradClipRatio, [](const StepFacts& step) { return step.verdict.clip_factor; }},
    Metric<StepFacts>{
        {"train_loss_scale", "1", MetricKind::kInstant, MetricScope::kJob},
        [](const StepFacts& step) { return step.verdict.loss_scale; }},
    Metric<StepFacts>{
        {"train_nonfinite_count", "count", MetricKind::kDelta, MetricScope::kJob},
        [](const StepFacts& step) { return step.lanes.nonfinite_count; }},
    Metric<StepFacts>{
        {"train_lr", "1", MetricKind::kInstant, MetricScope::kJob},
        [](const StepFacts& step) { return step.learning_rate; }},
    Metric<StepFacts>{
        {"train_tokens", "tokens", MetricKind::kDelta, MetricScope::kJob},
        [](const StepFacts& step) { return step.lanes.token_count; }},
    Metric<StepFacts>{
        {"train_tokens_per_second", "tokens_per_second", MetricKind::kRate, MetricScope::kJob},
        [](const StepFacts& step) {
          return ratio(step.lanes.token_count, seconds(step.step_time));
        }},
    Metric<StepFacts>{
        {"train_step_skipped", "count", MetricKind::kDelta, MetricScope::kJob},
        [](const StepFacts& step) { return step.verdict.skip ? 1.0 : 0.0; }}};

// A column per head of an attention layer. The view is the layer's row of ReducedLanes::max_logits.
inline constexpr std::array kLogitMetrics{IndexedMetric<std::vector<double>>{
    {"train_attn_logit_max", "1", MetricKind::kInstant, MetricScope::kJob},
    [](const std::vector<double>& logits, std::size_t head) {
      return known_maximum(logits[head]);
    }}};

// The view is the layer's row of ReducedLanes::expert_counts.
inline constexpr std::array kMoeLayerMetrics{Metric<std::vector<double>>{
    {"train_moe_maxvio_ratio", "ratio", MetricKind::kRatio, MetricScope::kJob},
    [](const std::vector<double>& tokens) {
      const double total = std::accumulate(tokens.begin(), tokens.end(), 0.0);
      if (!(total > 0.0)) {
        return kNone;
      }
      const double mean = total / static_cast<double>(tokens.size());
      return *std::max_element(tokens.begin(), tokens.end()) / mean - 1.0;
    }}};

inline constexpr std::array kExpertMetrics{IndexedMetric<std::vector<double>>{
    {"train_moe_expert_tokens", "tokens", MetricKind::kDelta, MetricScope::kJob},
    [](const std::vector<double>& tokens, std::size_t expert) { return tokens[expert]; }}};

inline constexpr std::array kQkClipMetrics{Metric<Verdict>{
    {"train_qkclip_heads", "count", MetricKind::kDelta, MetricScope::kJob},
    [](const Verdict& verdict) {
      std::ptrdiff_t heads = 0;
      for (const std::vector<double>& layer : verdict.head_gammas) {
        heads +=
            std::count_if(layer.begin(), layer.end(), [](double gamma) { return gamma < 1.0; });
      }
      return static_cast<double>(heads);
    }}};

}  // namespace muster::agent
