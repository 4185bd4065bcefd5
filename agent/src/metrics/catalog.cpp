#include "agent/src/metrics/catalog.h"

#include <muster/common/check.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <limits>
#include <optional>
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
    MetricFamily{"train_loss_scale", "1", kInstant, kJob},
    MetricFamily{"train_nonfinite_count", "count", kDelta, kJob},
    MetricFamily{"train_lr", "1", kInstant, kJob},
    MetricFamily{"train_tokens", "tokens", kDelta, kJob},
    MetricFamily{"train_tokens_per_second", "tokens_per_second", kRate, kJob},
    MetricFamily{"train_step_skipped", "count", kDelta, kJob},
    MetricFamily{"train_attn_logit_max", "1", kInstant, kJob},
    MetricFamily{"train_attn_mode", "1", kInstant, kJob},
    MetricFamily{"train_attn_gate_bound", "1", kInstant, kJob},
    MetricFamily{"train_attn_norm_bound", "1", kInstant, kJob},
    MetricFamily{"train_attn_nonfinite_rows", "count", kDelta, kJob},
    MetricFamily{"train_attn_query_reach", "ratio", kRatio, kJob},
    MetricFamily{"train_attn_block_reach", "ratio", kRatio, kJob},
    MetricFamily{"train_moba_sink_share", "ratio", kRatio, kJob},
    MetricFamily{"train_moba_gate_margin", "1", kInstant, kJob},
    MetricFamily{"train_moba_block_share", "ratio", kRatio, kJob},
    MetricFamily{"train_moba_block_max_over_mean", "ratio", kRatio, kJob},
    MetricFamily{"train_moe_maxvio_ratio", "ratio", kRatio, kJob},
    MetricFamily{"train_moe_expert_tokens", "tokens", kDelta, kJob},
    MetricFamily{"train_ep_rank_imbalance_ratio", "ratio", kRatio, kJob},
    MetricFamily{"train_ep_copies", "count", kDelta, kJob},
    MetricFamily{"train_ep_rows_moved", "count", kDelta, kJob},
    MetricFamily{"train_ep_pad_ratio", "ratio", kRatio, kJob},
    MetricFamily{"train_ep_dedup_ratio", "ratio", kRatio, kJob},
    MetricFamily{"train_ep_bytes_out", "bytes", kDelta, kJob},
    MetricFamily{"train_update_rms", "1", kInstant, kJob},
    MetricFamily{"train_update_abs_max", "1", kInstant, kJob},
    MetricFamily{"train_update_param_ratio", "ratio", kRatio, kJob},
    MetricFamily{"train_param_norm", "1", kInstant, kJob},
    MetricFamily{"train_param_abs_max", "1", kInstant, kJob},
    MetricFamily{"train_momentum_norm", "1", kInstant, kJob},
    MetricFamily{"train_momentum_abs_max", "1", kInstant, kJob},
    MetricFamily{"train_momentum_mean", "1", kInstant, kJob},
    MetricFamily{"train_momentum_variance", "1", kInstant, kJob},
    MetricFamily{"train_momentum_gradient_cosine", "1", kInstant, kJob},
    MetricFamily{"train_adam_v_mean", "1", kInstant, kJob},
    MetricFamily{"train_adam_v_variance", "1", kInstant, kJob},
    MetricFamily{"train_adam_v_abs_max", "1", kInstant, kJob},
    MetricFamily{"train_adam_v_tiny_ratio", "ratio", kRatio, kJob},
    MetricFamily{"train_adam_v_decay_saturation", "1", kInstant, kJob},
    MetricFamily{"train_adam_rms_t", "1", kInstant, kJob},
    MetricFamily{"train_adam_staleness_ratio", "ratio", kRatio, kJob},
    MetricFamily{"train_muon_direction_norm", "1", kInstant, kJob},
    MetricFamily{"train_muon_effective_rank_ratio", "ratio", kRatio, kJob},
    MetricFamily{"train_muon_effective_rank_min_ratio", "ratio", kRatio, kJob},
    MetricFamily{"train_muon_orthogonality_error", "1", kInstant, kJob},
    MetricFamily{"train_muon_orthogonality_error_max", "1", kInstant, kJob},
    MetricFamily{"train_muon_nonfinite_blocks", "count", kDelta, kJob},
    MetricFamily{"train_muon_recomputed_blocks", "count", kDelta, kJob},
    MetricFamily{"train_qkclip_heads", "count", kDelta, kJob},
    MetricFamily{"train_step_seconds", "seconds", kInstant, kRank},
    MetricFamily{"train_phase_seconds", "seconds", kInstant, kRank},
    MetricFamily{"train_compute_seconds", "seconds", kInstant, kRank},
    MetricFamily{"train_loss_local_nats", "nats", kInstant, kRank},
    MetricFamily{"train_update_applied", "1", kInstant, kRank},
    MetricFamily{"train_ep_wait_seconds", "seconds", kInstant, kRank},
    MetricFamily{"train_ep_plan_seconds", "seconds", kInstant, kRank},
    MetricFamily{"train_ep_move_seconds", "seconds", kInstant, kRank},
    MetricFamily{"train_telemetry_seconds", "seconds", kInstant, kRank},
};

}  // namespace

std::span<const MetricFamily> metric_families() {
  return kFamilies;
}

namespace {

// beta2 of a rule's v; nothing for rules without.
std::optional<double> beta2_of(optimizer::Rule rule, const optimizer::OptimizerOptions& options) {
  switch (rule) {
    case optimizer::Rule::kAdamW:
      return options.adamw.beta2;
    case optimizer::Rule::kAdam:
      return options.adam.beta2;
    case optimizer::Rule::kRmsProp:
      return options.rmsprop.alpha;
    case optimizer::Rule::kMuon:
    case optimizer::Rule::kSgd:
    case optimizer::Rule::kMomentum:
      break;
  }
  return std::nullopt;
}

bool has_momentum(optimizer::Rule rule) {
  return rule != optimizer::Rule::kSgd && rule != optimizer::Rule::kRmsProp;
}

}  // namespace

std::vector<GroupInfo> groups_of(optimizer::Optimizer& optimizer) {
  std::vector<GroupInfo> groups;
  for (const std::string& name : optimizer.group_names()) {
    groups.push_back({name, false, false, false, 0});
  }
  for (const optimizer::Parameter& parameter : optimizer.parameters()) {
    GroupInfo& group = groups[static_cast<std::size_t>(parameter.group_index)];
    const optimizer::Rule rule = parameter.route.rule;
    group.has_momentum = group.has_momentum || has_momentum(rule);
    group.has_blocks = group.has_blocks || rule == optimizer::Rule::kMuon;
    if (const auto beta2 = beta2_of(rule, optimizer.options())) {
      const bool differs = group.has_second_moment && group.beta2 != *beta2;
      group.beta2 = differs ? std::numeric_limits<double>::quiet_NaN() : *beta2;
      group.has_second_moment = true;
    }
  }
  return groups;
}

MetricCatalog::MetricCatalog(const ModelInfo& model, std::vector<GroupInfo> groups, Scope scope)
    : groups_(std::move(groups)), scope_(scope), layers_(layer_columns(model)) {
  if (scope_.job) {
    add_job_metrics(model);
    add_layer_metrics();
    for (const GroupInfo& group : groups_) {
      add_group_metrics(group);
    }
    add("train_qkclip_heads");
  }
  add("train_step_seconds");
  for (std::size_t phase = 0; phase < kPhaseCount; ++phase) {
    add("train_phase_seconds", to_string(static_cast<Phase>(phase)));
  }
  add("train_compute_seconds");
  add("train_loss_local_nats");
  add("train_update_applied");
  add_ep_rank_metrics();
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
  add("train_loss_scale");
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

void MetricCatalog::add_group_metrics(const GroupInfo& group) {
  const auto add_all = [&](std::initializer_list<const char*> names) {
    for (const char* name : names) {
      add(name, group.name);
    }
  };
  add("train_grad_norm", group.name);
  if (scope_.clips_groups) {
    add("train_grad_clip_ratio", group.name);
  }
  if (!scope_.statistics) {
    return;
  }
  add_all(
      {"train_update_rms",
       "train_update_abs_max",
       "train_update_param_ratio",
       "train_param_norm",
       "train_param_abs_max"});
  if (group.has_momentum) {
    add_all(
        {"train_momentum_norm",
         "train_momentum_abs_max",
         "train_momentum_mean",
         "train_momentum_variance",
         "train_momentum_gradient_cosine"});
  }
  if (group.has_second_moment) {
    add_all(
        {"train_adam_v_mean",
         "train_adam_v_variance",
         "train_adam_v_abs_max",
         "train_adam_v_tiny_ratio",
         "train_adam_v_decay_saturation",
         "train_adam_rms_t",
         "train_adam_staleness_ratio"});
  }
  if (group.has_blocks) {
    add_all(
        {"train_muon_direction_norm",
         "train_muon_effective_rank_ratio",
         "train_muon_effective_rank_min_ratio",
         "train_muon_orthogonality_error",
         "train_muon_orthogonality_error_max",
         "train_muon_nonfinite_blocks",
         "train_muon_recomputed_blocks"});
  }
}

}  // namespace muster::agent
