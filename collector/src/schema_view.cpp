// SPDX-License-Identifier: Apache-2.0
#include "collector/src/schema_view.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>

namespace muster::collector {

namespace {

double value_or_zero(const SampleFrame& frame, std::optional<std::uint32_t> column) {
  return column.has_value() ? static_cast<double>(frame.values[*column]) : 0.0;
}

double value_or_nan(const SampleFrame& frame, std::optional<std::uint32_t> column) {
  return column.has_value() ? static_cast<double>(frame.values[*column])
                            : std::numeric_limits<double>::quiet_NaN();
}

// An EP group has at most this many ranks; a larger index is a mistake, not a reason to allocate.
constexpr std::int32_t kEpRanksMax = 4096;

}  // namespace

SchemaView::SchemaView(MetricSchema schema) : schema_(std::move(schema)) {
  for (const MetricDescriptor& metric : schema_.metrics) {
    if (metric.kind == MetricKind::kDelta) {
      delta_columns_.push_back(metric.id);
    }
    if (metric.scope != MetricScope::kJob) {
      add_wait(metric);
      continue;
    }
    if (metric.layer >= 0 && metric.index < 0) {
      add_layer(metric);
    }
    if (metric.name == "train_attn_logit_max") {
      logits_.push_back({metric.id, metric.layer, metric.index});
    } else if (!metric.group.empty() || metric.layer >= 0) {
      continue;  // A part of the job's value, not the value itself.
    } else if (metric.name == "train_loss_nats") {
      loss_ = metric.id;
    } else if (metric.name == "train_grad_norm") {
      gradient_norm_ = metric.id;
    } else if (metric.name == "train_nonfinite_count") {
      nonfinite_count_ = metric.id;
    } else if (metric.name == "train_step_skipped") {
      step_skipped_ = metric.id;
    }
  }
}

void SchemaView::add_layer(const MetricDescriptor& metric) {
  if (metric.name == "train_attn_mode") {
    attention_[metric.layer].mode = metric.id;
  } else if (metric.name == "train_attn_query_reach") {
    attention_[metric.layer].query_reach = metric.id;
  } else if (metric.name == "train_attn_block_reach") {
    attention_[metric.layer].block_reach = metric.id;
  } else if (metric.name == "train_ep_rank_imbalance_ratio") {
    experts_[metric.layer].rank_imbalance = metric.id;
  } else if (metric.name == "train_moe_maxvio_ratio") {
    experts_[metric.layer].maxvio = metric.id;
  }
}

void SchemaView::add_wait(const MetricDescriptor& metric) {
  if (metric.name != "train_ep_wait_seconds" || metric.index < 0 || metric.index >= kEpRanksMax) {
    return;
  }
  const auto place = static_cast<std::size_t>(metric.index);
  waits_.resize(std::max(waits_.size(), place + 1));
  waits_[place] = metric.id;
}

std::vector<double> SchemaView::wait_row(const SampleFrame& frame) const {
  std::vector<double> row;
  row.reserve(waits_.size());
  for (const std::optional<std::uint32_t> column : waits_) {
    row.push_back(value_or_zero(frame, column));  // A rank may leave itself out.
  }
  return row;
}

std::optional<detect::StepObservation> SchemaView::observe(
    Generation generation, const SampleFrame& frame) const {
  if (!loss_.has_value() && !gradient_norm_.has_value()) {
    return std::nullopt;
  }
  detect::StepObservation observation;
  observation.step = frame.step;
  observation.generation = generation.value();
  observation.loss = value_or_zero(frame, loss_);
  observation.gradient_norm = value_or_zero(frame, gradient_norm_);
  observation.nonfinite_count = value_or_zero(frame, nonfinite_count_);
  observation.skipped = value_or_zero(frame, step_skipped_) > 0;
  observation.max_logit = std::numeric_limits<double>::quiet_NaN();
  for (const LogitColumn& column : logits_) {
    const auto logit = static_cast<double>(frame.values[column.id]);
    if (std::isnan(observation.max_logit) || logit > observation.max_logit) {
      observation.max_logit = logit;
      observation.max_logit_layer = column.layer;
      observation.max_logit_head = column.head;
    }
  }
  for (const auto& [layer, columns] : attention_) {
    observation.attention.push_back(
        {layer,
         value_or_nan(frame, columns.mode),
         value_or_nan(frame, columns.query_reach),
         value_or_nan(frame, columns.block_reach)});
  }
  for (const auto& [layer, columns] : experts_) {
    observation.experts.push_back(
        {layer, value_or_nan(frame, columns.rank_imbalance), value_or_nan(frame, columns.maxvio)});
  }
  return observation;
}

}  // namespace muster::collector
