#include "src/schema_view.h"

#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>

namespace muster::collector {

namespace {

double value_or_zero(const SampleFrame& frame, std::optional<std::uint32_t> column) {
  return column.has_value() ? static_cast<double>(frame.values[*column]) : 0.0;
}

}  // namespace

SchemaView::SchemaView(MetricSchema schema) : schema_(std::move(schema)) {
  for (const MetricDescriptor& metric : schema_.metrics) {
    if (metric.kind == MetricKind::kDelta) {
      delta_columns_.push_back(metric.id);
    }
    if (metric.scope != MetricScope::kJob) {
      continue;
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
  return observation;
}

}  // namespace muster::collector
