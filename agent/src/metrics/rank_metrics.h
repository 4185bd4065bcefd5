// SPDX-License-Identifier: Apache-2.0
// Metrics that every rank publishes.
#pragma once

#include "agent/src/metrics/metric.h"
#include "agent/src/metrics/step_facts.h"

#include <array>
#include <cstddef>

namespace muster::agent {

[[nodiscard]] inline std::chrono::nanoseconds time_of(const StepFacts& step, Phase phase) {
  return step.phases[static_cast<std::size_t>(phase)];
}

inline constexpr std::array kStepTimeMetrics{Metric<StepFacts>{
    {"train_step_seconds", "seconds", MetricKind::kInstant, MetricScope::kRank},
    [](const StepFacts& step) { return seconds(step.step_time); }}};

struct PhaseView {
  const StepFacts& step;
  Phase phase;
};

inline constexpr std::array kPhaseMetrics{Metric<PhaseView>{
    {"train_phase_seconds", "seconds", MetricKind::kInstant, MetricScope::kRank},
    [](const PhaseView& view) { return seconds(time_of(view.step, view.phase)); }}};

inline constexpr std::array kRankMetrics{
    Metric<StepFacts>{
        {"train_compute_seconds", "seconds", MetricKind::kInstant, MetricScope::kRank},
        [](const StepFacts& step) {
          return seconds(
              step.step_time - time_of(step, Phase::kExpertComm) - time_of(step, Phase::kReduce) -
              time_of(step, Phase::kVerdict) - time_of(step, Phase::kGather));
        }},
    Metric<StepFacts>{
        {"train_loss_local_nats", "nats", MetricKind::kInstant, MetricScope::kRank},
        [](const StepFacts& step) { return step.local_loss; }},
    Metric<StepFacts>{
        {"train_update_applied", "1", MetricKind::kInstant, MetricScope::kRank},
        [](const StepFacts& step) { return step.update_applied ? 1.0 : 0.0; }}};

// Only where experts are distributed over ranks. Null `times` has no values.
struct EpTimesView {
  explicit EpTimesView(const StepFacts& step) : times(step.ep.any ? &step.ep : nullptr) {}

  const EpTimes* times;
};

// A column per rank of the expert group.
inline constexpr std::array kEpWaitMetrics{IndexedMetric<EpTimesView>{
    {"train_ep_wait_seconds", "seconds", MetricKind::kInstant, MetricScope::kRank},
    [](const EpTimesView& view, std::size_t peer) {
      return view.times != nullptr ? seconds(view.times->waits[peer]) : kNone;
    }}};

inline constexpr std::array kEpTimeMetrics{
    Metric<EpTimesView>{
        {"train_ep_plan_seconds", "seconds", MetricKind::kInstant, MetricScope::kRank},
        [](const EpTimesView& view) {
          return view.times != nullptr ? seconds(view.times->plan) : kNone;
        }},
    Metric<EpTimesView>{
        {"train_ep_move_seconds", "seconds", MetricKind::kInstant, MetricScope::kRank},
        [](const EpTimesView& view) {
          return view.times != nullptr ? seconds(view.times->move) : kNone;
        }}};

// The last column: time on the training thread.
inline constexpr MetricFamily kTelemetrySeconds{
    "train_telemetry_seconds", "seconds", MetricKind::kInstant, MetricScope::kRank};

}  // namespace muster::agent
