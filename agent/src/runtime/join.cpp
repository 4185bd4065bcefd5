// SPDX-License-Identifier: Apache-2.0
// Creation of an agent: checks the settings against the world, opens the writer and the uplink.
#include "agent/src/checkpoint/shared_state_text.h"
#include "agent/src/metrics/catalog.h"
#include "agent/src/runtime/runtime.h"

#include <muster/comm/agree.h>
#include <muster/common/hash.h>

#include <algorithm>
#include <string>
#include <utility>

namespace muster::agent {
namespace {

LaneLayout layout_of(const ModelInfo& model, std::size_t groups) {
  LayerColumns columns = layer_columns(model);
  LaneLayout layout;
  layout.groups = groups;
  layout.heads = std::move(columns.attention_heads);
  layout.experts = std::move(columns.experts);
  layout.moba_heads = std::move(columns.moba_heads);
  layout.ep_layers = columns.ep_layers;
  return layout;
}

Status check_world(const AgentOptions& options, const comm::Communicator& world) {
  if (options.identity.rank.value() != world.rank() || options.world_size != world.size()) {
    return invalid_argument(
        "AgentOptions has rank ",
        options.identity.rank.value(),
        " of ",
        options.world_size,
        ", but the communicator has rank ",
        world.rank(),
        " of ",
        world.size(),
        ": build both from the same environment");
  }
  return {};
}

Status check_model(const ModelInfo& model) {
  for (const optimizer::AttentionLayer& layer : model.attention) {
    if (layer.heads < 1) {
      return invalid_argument("attention layer ", layer.layer, " needs at least one head");
    }
  }
  for (const int experts : model.experts_per_layer) {
    if (experts <= 0) {
      return invalid_argument("an MoE layer needs at least one expert");
    }
  }
  if (model.expert_ranks < 0 || model.expert_ranks > parallel::kEpEventRanksMax) {
    return invalid_argument(
        "expert_ranks must be between 0 and ",
        parallel::kEpEventRanksMax,
        ", got ",
        model.expert_ranks);
  }
  return model.attention_schedule
             ? model.attention_schedule->validate(static_cast<std::int64_t>(model.attention.size()))
             : Status{};
}

// The reason why an attention layer cannot be scaled; OK if all can.
Status check_qk_clip(const ModelInfo& model, optimizer::Optimizer& optimizer) {
  for (const optimizer::AttentionLayer& layer : model.attention) {
    MUSTER_RETURN_IF_ERROR(
        optimizer::check_attention_layer(layer, optimizer).context("QK-clip is not possible"));
  }
  return {};
}

bool has_fp16(optimizer::Optimizer& optimizer) {
  const auto parameters = optimizer.parameters();
  return std::any_of(parameters.begin(), parameters.end(), [](const auto& parameter) {
    return parameter.spec.dtype == DType::kFloat16;
  });
}

// Every property of a layer that scaling depends on, so that ranks cannot scale differently.
std::string text_of(const optimizer::AttentionLayer& layer) {
  std::string text;
  for (const std::int64_t value :
       {std::int64_t{layer.layer},
        std::int64_t{layer.heads},
        std::int64_t{layer.head_dim},
        static_cast<std::int64_t>(layer.kind),
        std::int64_t{layer.key_heads},
        static_cast<std::int64_t>(layer.grouped_clip),
        layer.query_row_begin,
        layer.key_row_begin,
        layer.group_stride,
        std::int64_t{layer.nope_dim},
        std::int64_t{layer.rope_dim},
        std::int64_t{layer.value_dim},
        std::int64_t{layer.qk_norm ? 1 : 0}}) {
    text += std::to_string(value) + ' ';
  }
  for (const std::string& name :
       {layer.query_parameter, layer.key_parameter, layer.query_bias, layer.key_bias}) {
    text += name + ' ';
  }
  return text + exact_text(layer.alpha) + '\n';
}

const Clock& clock_of(const AgentOptions& options) {
  static const SystemClock kSystem;
  return options.clock == nullptr ? kSystem : *options.clock;
}

DecideOptions decide_options_of(
    const AgentOptions& options, optimizer::Optimizer& optimizer, std::string qk_clip_obstacle) {
  const optimizer::OptimizerOptions& settings = optimizer.options();
  DecideOptions decide;
  decide.clip_norm = settings.clip_norm;
  decide.clipping = settings.clipping;
  decide.group_names = optimizer.group_names();
  decide.qk_clip_obstacle = std::move(qk_clip_obstacle);
  if (has_fp16(optimizer)) {
    decide.loss_scale = settings.loss_scale;
  }
  decide.checkpoint_interval = options.checkpoint_interval;
  decide.total_steps = options.total_steps;
  decide.skips_max = options.skips_max;
  decide.skip_window = options.skip_window;
  decide.withheld_max = options.withheld_max;
  decide.checkpoints_enabled = !options.checkpoint_root.empty();
  return decide;
}

SharedState fresh_state(const AgentOptions& options, const DecideOptions& decide) {
  SharedState state;
  state.qk_clip_threshold = options.qk_clip_threshold;
  if (decide.loss_scale) {
    optimizer::start_loss_scale(*decide.loss_scale, state.guard);
  }
  return state;
}

std::unique_ptr<StepReporter> make_reporter(
    const Runtime::Parts& parts, std::unique_ptr<Telemetry> telemetry) {
  return std::make_unique<StepReporter>(
      parts.clock,
      std::move(telemetry),
      parts.options.identity.rank == Rank{0},
      layer_columns(parts.model).attention_ids);
}

// Collective: kInvalidArgument when ranks were started with different settings.
Status check_equal_settings(const Runtime::Parts& parts) {
  const DecideOptions& decide = parts.decide_options;
  std::string settings;
  for (const double value :
       {static_cast<double>(parts.layout.groups),
        decide.clip_norm,
        static_cast<double>(decide.checkpoint_interval),
        static_cast<double>(decide.total_steps),
        static_cast<double>(decide.skips_max),
        static_cast<double>(decide.skip_window),
        static_cast<double>(decide.withheld_max),
        decide.checkpoints_enabled ? 1.0 : 0.0,
        static_cast<double>(parts.options.digest_interval),
        parts.options.qk_clip_threshold,
        parts.state.guard.loss_scale,
        static_cast<double>(parts.model.expert_ranks),
        parts.options.allow_attention_change ? 1.0 : 0.0}) {
    settings += exact_text(value) + ' ';
  }
  for (const optimizer::AttentionLayer& layer : parts.model.attention) {
    settings += text_of(layer);
  }
  for (const int experts : parts.layout.experts) {
    settings += std::to_string(experts) + ' ';
  }
  if (parts.model.attention_schedule) {
    settings += parts.model.attention_schedule->to_string();
  }
  return comm::agree(
      parts.world,
      hash64(std::as_bytes(std::span{settings})),
      "attention and MoE layers, attention_schedule, allow_attention_change, expert_ranks, "
      "clip_norm, checkpoint_interval, checkpoint folder, total_steps, skips_max, skip_window, "
      "withheld_max, digest_interval and qk_clip_threshold",
      Deadline::after(parts.options.collective_timeout));
}

}  // namespace

Expected<std::unique_ptr<Agent>> Agent::join(
    AgentOptions options,
    comm::Communicator& world,
    optimizer::Optimizer& optimizer,
    ModelInfo model) {
  MUSTER_RETURN_IF_ERROR(check_world(options, world));
  MUSTER_RETURN_IF_ERROR(check_model(model));
  const Status qk_clip = check_qk_clip(model, optimizer);
  if (options.qk_clip_threshold > 0) {
    MUSTER_RETURN_IF_ERROR(qk_clip);
  }
  const Clock& clock = clock_of(options);
  const bool reports_job = world.rank() == 0;
  const LaneLayout layout = layout_of(model, optimizer.group_names().size());
  MetricCatalog catalog{
      model,
      groups_of(optimizer),
      {reports_job, !optimizer.options().clipping.groups.empty(), optimizer.options().statistics}};
  MUSTER_ASSIGN_OR_RETURN(auto saves, SaveCoordinator::create(options, world));
  MUSTER_ASSIGN_OR_RETURN(
      auto telemetry,
      make_telemetry(
          options, std::move(catalog), shaped_sample(layout, model, reports_job), clock));
  const DecideOptions decide = decide_options_of(options, optimizer, qk_clip.message());
  Runtime::Parts parts{
      std::move(options),
      world,
      optimizer,
      std::move(model),
      clock,
      std::move(saves),
      nullptr,
      {},
      decide,
      {}};
  parts.layout = layout;
  parts.state = fresh_state(parts.options, decide);
  parts.reporter = make_reporter(parts, std::move(telemetry));
  MUSTER_RETURN_IF_ERROR(check_equal_settings(parts));
  return std::unique_ptr<Agent>{std::make_unique<Runtime>(std::move(parts))};
}

}  // namespace muster::agent
