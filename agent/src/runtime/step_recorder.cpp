// SPDX-License-Identifier: Apache-2.0
#include "agent/src/runtime/step_recorder.h"

#include "agent/src/verdict/layer_report.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace muster::agent {
namespace {

float fold(float a, float b) {
  return std::isnan(a) || std::isnan(b) ? std::numeric_limits<float>::quiet_NaN() : std::max(a, b);
}

std::string layer_text(const char* what, std::size_t layer, std::size_t size) {
  return std::string{what} + " of layer " + std::to_string(layer) + " with " +
         std::to_string(size) + " values do not fit the model given to join";
}

std::string attention_layer_text(std::size_t layer) {
  return "attention layer " + std::to_string(layer);
}

}  // namespace

StepRecorder::StepRecorder(const ModelInfo& model, const LaneLayout& layout)
    : model_(model), layout_(layout) {
  for (const int heads : layout_.heads) {
    lanes_.max_logits.emplace_back(static_cast<std::size_t>(heads));
  }
  for (const int experts : layout_.experts) {
    lanes_.expert_counts.emplace_back(static_cast<std::size_t>(experts));
  }
  for (const int heads : layout_.moba_heads) {
    MobaLanes& lanes = lanes_.moba.emplace_back();
    lanes.gate_bound.resize(static_cast<std::size_t>(heads));
    lanes.norm_bound.resize(static_cast<std::size_t>(heads));
    lanes.clear();
  }
  lanes_.ep.resize(layout_.ep_layers);
  ep_times_.waits.resize(static_cast<std::size_t>(model_.expert_ranks));
}

void StepRecorder::begin_step() {
  for (std::vector<float>& row : lanes_.max_logits) {
    std::fill(row.begin(), row.end(), -std::numeric_limits<float>::infinity());
  }
  for (std::vector<double>& row : lanes_.expert_counts) {
    std::fill(row.begin(), row.end(), 0.0);
  }
  for (MobaLanes& lanes : lanes_.moba) {
    lanes.clear();
  }
  std::fill(lanes_.ep.begin(), lanes_.ep.end(), EpLanes{});
  ep_times_.clear();
}

void StepRecorder::record_max_logits(std::size_t layer_index, std::span<const float> max_logits) {
  if (evaluations_ > 0) {
    return;
  }
  if (layer_index >= lanes_.max_logits.size() ||
      max_logits.size() != lanes_.max_logits[layer_index].size()) {
    misuse_ = invalid_argument(layer_text("max logits", layer_index, max_logits.size()));
    return;
  }
  std::vector<float>& row = lanes_.max_logits[layer_index];
  std::transform(row.begin(), row.end(), max_logits.begin(), row.begin(), fold);
}

void StepRecorder::record_expert_counts(
    std::size_t layer_index, std::span<const std::int64_t> counts) {
  if (evaluations_ > 0) {
    return;
  }
  if (layer_index >= lanes_.expert_counts.size() ||
      counts.size() != lanes_.expert_counts[layer_index].size()) {
    misuse_ = invalid_argument(layer_text("expert counts", layer_index, counts.size()));
    return;
  }
  std::vector<double>& row = lanes_.expert_counts[layer_index];
  std::transform(
      row.begin(), row.end(), counts.begin(), row.begin(), [](double sum, std::int64_t n) {
        return sum + static_cast<double>(n);
      });
}

bool StepRecorder::can_use_moba(std::size_t layer_index) const {
  return !layout_.moba_heads.empty() && layout_.moba_heads[layer_index] > 0;
}

void StepRecorder::set_attention_modes(std::span<const AttentionMode> modes) {
  if (evaluations_ > 0) {
    return;
  }
  if (!model_.attention_schedule || modes.size() != layout_.heads.size()) {
    misuse_ = invalid_argument(
        modes.size(),
        " attention modes do not fit the model given to join: ",
        layout_.heads.size(),
        " attention layers, ",
        (model_.attention_schedule ? "with" : "without"),
        " an attention_schedule");
    return;
  }
  for (std::size_t layer = 0; layer < modes.size(); ++layer) {
    if (modes[layer].moba && !can_use_moba(layer)) {
      misuse_ = invalid_argument(
          attention_layer_text(layer),
          " is set to ",
          label_of(modes[layer]),
          ", but ModelInfo::attention_schedule never puts it under block attention");
      return;
    }
  }
  modes_.assign(modes.begin(), modes.end());
}

void StepRecorder::record_moba(std::size_t layer_index, const MobaRecord& record) {
  if (evaluations_ > 0) {
    return;
  }
  if (layer_index >= layout_.heads.size() || !can_use_moba(layer_index)) {
    misuse_ = invalid_argument(
        "block attention of ",
        attention_layer_text(layer_index),
        " was recorded, but the model given to join has no attention_schedule that puts it under "
        "block attention");
    return;
  }
  const Status added = add_record(record, lanes_.moba[layer_index], lanes_.max_logits[layer_index]);
  if (!added.ok()) {
    misuse_ = added.context("the record of " + attention_layer_text(layer_index));
  }
}

void StepRecorder::record_reach(
    std::size_t layer_index, const kernels::GradientCoverage& coverage) {
  if (evaluations_ > 0) {
    return;
  }
  if (layer_index >= layout_.heads.size()) {
    misuse_ = invalid_argument(
        "the reach of ",
        attention_layer_text(layer_index),
        " was recorded, but the model has ",
        layout_.heads.size(),
        " attention layers");
    return;
  }
  if (!can_use_moba(layer_index)) {
    return;
  }
  const Status added = add_reach(coverage, lanes_.moba[layer_index]);
  if (!added.ok()) {
    misuse_ = added.context("the record of " + attention_layer_text(layer_index));
  }
}

void StepRecorder::record_ep(std::size_t moe_layer_index, const parallel::EpEvent& event) {
  if (evaluations_ > 0 || model_.expert_ranks == 0) {
    return;
  }
  if (moe_layer_index >= lanes_.ep.size() || event.ranks != model_.expert_ranks) {
    misuse_ = invalid_argument(
        "a pass of MoE layer ",
        moe_layer_index,
        " over ",
        event.ranks,
        " ranks does not fit the model given to join: ",
        lanes_.ep.size(),
        " MoE layers, expert_ranks ",
        model_.expert_ranks);
    return;
  }
  add_pass(event, lanes_.ep[moe_layer_index]);
  ep_times_.add(event);
}

}  // namespace muster::agent
