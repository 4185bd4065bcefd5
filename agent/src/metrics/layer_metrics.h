// SPDX-License-Identifier: Apache-2.0
// Metrics of single layers: attention modes, block attention (MoBA), and experts over ranks.
#pragma once

#include "agent/src/metrics/metric.h"
#include "agent/src/metrics/step_facts.h"

#include <array>
#include <cstddef>
#include <numeric>

namespace muster::agent {

struct ModeView {
  const StepFacts& step;
  std::size_t layer;
};

inline constexpr std::array kModeMetrics{Metric<ModeView>{
    {"train_attn_mode", "1", MetricKind::kInstant, MetricScope::kJob}, [](const ModeView& view) {
      if (view.step.modes.empty()) {
        return kNone;
      }
      return view.step.modes[view.layer].moba ? 1.0 : 0.0;
    }}};

// A column of each per head of a layer under block attention.
inline constexpr std::array kMobaHeadMetrics{
    IndexedMetric<MobaLanes>{
        {"train_attn_gate_bound", "1", MetricKind::kInstant, MetricScope::kJob},
        [](const MobaLanes& moba, std::size_t head) {
          return known_maximum(moba.gate_bound[head]);
        }},
    IndexedMetric<MobaLanes>{
        {"train_attn_norm_bound", "1", MetricKind::kInstant, MetricScope::kJob},
        [](const MobaLanes& moba, std::size_t head) {
          return known_maximum(moba.norm_bound[head]);
        }}};

// Counts are divided here and nowhere before.
inline constexpr std::array kMobaLayerMetrics{
    Metric<MobaLanes>{
        {"train_attn_nonfinite_rows", "count", MetricKind::kDelta, MetricScope::kJob},
        [](const MobaLanes& moba) { return moba.nonfinite_rows; }},
    Metric<MobaLanes>{
        {"train_attn_query_reach", "ratio", MetricKind::kRatio, MetricScope::kJob},
        [](const MobaLanes& moba) { return ratio(moba.queries_reached, moba.queries); }},
    Metric<MobaLanes>{
        {"train_attn_block_reach", "ratio", MetricKind::kRatio, MetricScope::kJob},
        [](const MobaLanes& moba) { return ratio(moba.blocks_reached, moba.reachable_blocks); }},
    Metric<MobaLanes>{
        {"train_moba_sink_share", "ratio", MetricKind::kRatio, MetricScope::kJob},
        [](const MobaLanes& moba) { return ratio(moba.sink_share_sum, moba.sink_share_count); }},
    Metric<MobaLanes>{
        {"train_moba_gate_margin", "1", MetricKind::kInstant, MetricScope::kJob},
        [](const MobaLanes& moba) { return ratio(moba.gate_margin_sum, moba.gate_margin_count); }},
    Metric<MobaLanes>{
        {"train_moba_block_max_over_mean", "ratio", MetricKind::kRatio, MetricScope::kJob},
        [](const MobaLanes& moba) { return known_maximum(moba.block_max_over_mean); }}};

struct BlockShareView {
  explicit BlockShareView(const MobaLanes& lanes)
      : moba(lanes),
        total(std::accumulate(lanes.bin_counts.begin(), lanes.bin_counts.end(), 0.0)) {}

  const MobaLanes& moba;
  double total;
};

// A column per bin; a bin beyond the longest sequence has no value.
inline constexpr std::array kBlockShareMetrics{IndexedMetric<BlockShareView>{
    {"train_moba_block_share", "ratio", MetricKind::kRatio, MetricScope::kJob},
    [](const BlockShareView& view, std::size_t bin) {
      const bool exists = static_cast<double>(bin) < view.moba.blocks;
      return exists ? ratio(view.moba.bin_counts[bin], view.total) : kNone;
    }}};

// The figures of a plan cover a group of ranks and are in the lanes once per rank of the group.
struct EpView {
  const EpLanes& ep;
  double ranks;
};

inline constexpr std::array kEpLayerMetrics{
    Metric<EpView>{
        {"train_ep_rank_imbalance_ratio", "ratio", MetricKind::kRatio, MetricScope::kJob},
        [](const EpView& view) { return known_maximum(view.ep.rank_imbalance); }},
    Metric<EpView>{
        {"train_ep_copies", "count", MetricKind::kDelta, MetricScope::kJob},
        [](const EpView& view) { return view.ep.copies / view.ranks; }},
    Metric<EpView>{
        {"train_ep_rows_moved", "count", MetricKind::kDelta, MetricScope::kJob},
        [](const EpView& view) { return view.ep.rows_moved / view.ranks; }},
    Metric<EpView>{
        {"train_ep_pad_ratio", "ratio", MetricKind::kRatio, MetricScope::kJob},
        [](const EpView& view) {
          return ratio(view.ep.pad_rows / view.ranks, view.ep.rows / view.ranks);
        }},
    Metric<EpView>{
        {"train_ep_dedup_ratio", "ratio", MetricKind::kRatio, MetricScope::kJob},
        [](const EpView& view) {
          const double rows = view.ep.rows / view.ranks;
          return ratio(rows - view.ep.dedup_rows, rows);
        }},
    Metric<EpView>{
        {"train_ep_bytes_out", "bytes", MetricKind::kDelta, MetricScope::kJob},
        [](const EpView& view) { return view.ep.bytes_out; }}};

}  // namespace muster::agent
