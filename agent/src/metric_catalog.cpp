#include "src/metric_catalog.h"

#include <muster/common/check.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace muster::agent {
namespace {

using enum MetricKind;
using enum MetricScope;

constexpr std::array kFamilies{
    MetricFamily{"train_loss_nats", "nats", kInstant, kJob},
    MetricFamily{"train_loss_local_max_nats", "nats", kInstant, kJob},
    MetricFamily{"train_grad_norm", "1", kInstant, kJob},
    MetricFamily{"train_grad_clip_ratio", "ratio", kRatio, kJob},
    MetricFamily{"train_nonfinite_count", "count", kDelta, kJob},
    MetricFamily{"train_lr", "1", kInstant, kJob},
    MetricFamily{"train_tokens", "tokens", kDelta, kJob},
    MetricFamily{"train_tokens_per_second", "tokens_per_second", kRate, kJob},
    MetricFamily{"train_step_skipped", "count", kDelta, kJob},
    MetricFamily{"train_attn_logit_max", "1", kInstant, kJob},
    MetricFamily{"train_moe_maxvio_ratio", "ratio", kRatio, kJob},
    MetricFamily{"train_moe_expert_tokens", "tokens", kDelta, kJob},
    MetricFamily{"train_update_rms", "1", kInstant, kJob},
    MetricFamily{"train_update_param_ratio", "ratio", kRatio, kJob},
    MetricFamily{"train_param_norm", "1", kInstant, kJob},
    MetricFamily{"train_param_abs_max", "1", kInstant, kJob},
    MetricFamily{"train_momentum_norm", "1", kInstant, kJob},
    MetricFamily{"train_momentum_abs_max", "1", kInstant, kJob},
    MetricFamily{"train_momentum_mean", "1", kInstant, kJob},
    MetricFamily{"train_momentum_variance", "1", kInstant, kJob},
    MetricFamily{"train_adam_v_mean", "1", kInstant, kJob},
    MetricFamily{"train_adam_v_variance", "1", kInstant, kJob},
    MetricFamily{"train_adam_v_abs_max", "1", kInstant, kJob},
    MetricFamily{"train_qkclip_heads", "count", kDelta, kJob},
    MetricFamily{"train_step_seconds", "seconds", kInstant, kRank},
    MetricFamily{"train_phase_seconds", "seconds", kInstant, kRank},
    MetricFamily{"train_compute_seconds", "seconds", kInstant, kRank},
    MetricFamily{"train_loss_local_nats", "nats", kInstant, kRank},
    MetricFamily{"train_update_applied", "1", kInstant, kRank},
    MetricFamily{"train_telemetry_seconds", "seconds", kInstant, kRank},
};

}  // namespace

std::span<const MetricFamily> metric_families() {
  return kFamilies;
}

std::vector<GroupInfo> groups_of(optimizer::Optimizer& optimizer) {
  std::vector<GroupInfo> groups;
  for (const std::string& name : optimizer.group_names()) {
    groups.push_back({name, false});
  }
  for (const optimizer::Parameter& parameter : optimizer.parameters()) {
    if (parameter.route.rule == optimizer::Rule::kAdamW) {
      groups[static_cast<std::size_t>(parameter.group_index)].has_second_moment = true;
    }
  }
  return groups;
}

MetricCatalog::MetricCatalog(const ModelInfo& model, std::vector<GroupInfo> groups, bool job_scope)
    : groups_(std::move(groups)), job_scope_(job_scope) {
  if (job_scope_) {
    add_job_metrics(model);
    add_group_metrics();
    add("train_qkclip_heads");
  }
  add("train_step_seconds");
  for (std::size_t phase = 0; phase < kPhaseCount; ++phase) {
    add("train_phase_seconds", to_string(static_cast<Phase>(phase)));
  }
  add("train_compute_seconds");
  add("train_loss_local_nats");
  add("train_update_applied");
  add("train_telemetry_seconds");
}

void MetricCatalog::add(const char* name, const std::string& group, int layer, int index) {
  const auto* family = std::find_if(kFamilies.begin(), kFamilies.end(), [name](const auto& entry) {
    return std::string_view{entry.name} == name;
  });
  MUSTER_CHECK(family != kFamilies.end(), name);
  MetricDescriptor metric;
  metric.id = static_cast<std::uint32_t>(schema_.metrics.size());
  metric.name = family->name;
  metric.unit = family->unit;
  metric.kind = family->kind;
  metric.scope = family->scope;
  metric.layer = layer;
  metric.index = index;
  metric.group = group;
  schema_.metrics.push_back(std::move(metric));
}

void MetricCatalog::add_job_metrics(const ModelInfo& model) {
  add("train_loss_nats");
  add("train_loss_local_max_nats");
  add("train_grad_norm");
  add("train_grad_clip_ratio");
  add("train_nonfinite_count");
  add("train_lr");
  add("train_tokens");
  add("train_tokens_per_second");
  add("train_step_skipped");
  for (const optimizer::AttentionLayer& layer : model.attention) {
    for (int head = 0; head < layer.heads; ++head) {
      add("train_attn_logit_max", "", layer.layer, head);
    }
  }
  for (std::size_t layer = 0; layer < model.experts_per_layer.size(); ++layer) {
    add("train_moe_maxvio_ratio", "", static_cast<int>(layer));
    for (int expert = 0; expert < model.experts_per_layer[layer]; ++expert) {
      add("train_moe_expert_tokens", "", static_cast<int>(layer), expert);
    }
  }
}

void MetricCatalog::add_group_metrics() {
  for (const GroupInfo& group : groups_) {
    for (const char* name :
         {"train_grad_norm",
          "train_update_rms",
          "train_update_param_ratio",
          "train_param_norm",
          "train_param_abs_max",
          "train_momentum_norm",
          "train_momentum_abs_max",
          "train_momentum_mean",
          "train_momentum_variance"}) {
      add(name, group.name);
    }
    if (group.has_second_moment) {
      add("train_adam_v_mean", group.name);
      add("train_adam_v_variance", group.name);
      add("train_adam_v_abs_max", group.name);
    }
  }
}

}  // namespace muster::agent
