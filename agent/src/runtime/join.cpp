// Building an agent: checks the settings against the world, opens the writer and the uplink.
#include "agent/src/checkpoint/shared_state_text.h"
#include "agent/src/runtime/runtime.h"

#include <muster/comm/agree.h>
#include <muster/common/hash.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

namespace muster::agent {
namespace {

LaneLayout layout_of(const ModelInfo& model, std::size_t groups) {
  LaneLayout layout;
  layout.groups = groups;
  for (const optimizer::AttentionLayer& layer : model.attention) {
    layout.heads.push_back(layer.heads);
  }
  layout.experts = model.experts_per_layer;
  LayerColumns columns = layer_columns(model);
  layout.moba_heads = std::move(columns.moba_heads);
  layout.ep_layers = columns.ep_layers;
  return layout;
}

Status check_world(const AgentOptions& options, const comm::Communicator& world) {
  if (options.identity.rank.value() != world.rank() || options.world_size != world.size()) {
    return invalid_argument(
        "the agent was told rank " + std::to_string(options.identity.rank.value()) + " of " +
        std::to_string(options.world_size) + ", the communicator is rank " +
        std::to_string(world.rank()) + " of " + std::to_string(world.size()) +
        ": build both from the same environment");
  }
  return {};
}

Status check_model(const ModelInfo& model) {
  for (const optimizer::AttentionLayer& layer : model.attention) {
    if (layer.heads < 1) {
      return invalid_argument(
          "attention layer " + std::to_string(layer.layer) + " needs at least one head");
    }
  }
  for (const int experts : model.experts_per_layer) {
    if (experts <= 0) {
      return invalid_argument("an MoE layer needs at least one expert");
    }
  }
  if (model.expert_ranks < 0 || model.expert_ranks > parallel::kEpEventRanksMax) {
    return invalid_argument(
        "expert_ranks is " + std::to_string(model.expert_ranks) + ": use 0 to " +
        std::to_string(parallel::kEpEventRanksMax));
  }
  return model.attention_schedule
             ? model.attention_schedule->validate(static_cast<std::int64_t>(model.attention.size()))
             : Status{};
}

// Why some attention layer cannot be scaled; a success when all can.
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
    return parameter.spec.dtype == optimizer::FloatType::kFloat16;
  });
}

// Everything of a layer that the scaling depends on, so that ranks cannot scale differently.
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
  MetricCatalog catalog{
      model,
      groups_of(optimizer),
      {world.rank() == 0,
       !optimizer.options().clipping.groups.empty(),
       optimizer.options().statistics}};
  MUSTER_ASSIGN_OR_RETURN(auto saver, Saver::create(options));
  MUSTER_ASSIGN_OR_RETURN(auto telemetry, make_telemetry(options, catalog.schema(), clock));
  auto runtime = std::make_unique<Runtime>(Runtime::Parts{
      std::move(options),
      world,
      optimizer,
      std::move(model),
      clock,
      std::move(catalog),
      std::move(saver),
      std::move(telemetry),
      qk_clip.message()});
  MUSTER_RETURN_IF_ERROR(runtime->check_equal_settings());
  return std::unique_ptr<Agent>{std::move(runtime)};
}

Runtime::Runtime(Parts parts)
    : parts_(std::move(parts)),
      layout_(layout_of(parts_.model, parts_.optimizer.group_names().size())) {
  const optimizer::OptimizerOptions& settings = parts_.optimizer.options();
  decide_options_.clip_norm = settings.clip_norm;
  decide_options_.clipping = settings.clipping;
  decide_options_.group_names = parts_.optimizer.group_names();
  decide_options_.qk_clip_obstacle = parts_.qk_clip_obstacle;
  if (has_fp16(parts_.optimizer)) {
    decide_options_.loss_scale = settings.loss_scale;
    optimizer::start_loss_scale(settings.loss_scale, state_.guard);
  }
  decide_options_.checkpoint_interval = parts_.options.checkpoint_interval;
  decide_options_.total_steps = parts_.options.total_steps;
  decide_options_.checkpoints_enabled = !parts_.options.checkpoint_root.empty();
  state_.qk_clip_threshold = parts_.options.qk_clip_threshold;
  local_.generation = parts_.options.identity.generation.value();
  for (const int heads : layout_.heads) {
    local_.max_logits.emplace_back(static_cast<std::size_t>(heads));
  }
  for (const int experts : layout_.experts) {
    local_.expert_counts.emplace_back(static_cast<std::size_t>(experts));
  }
  for (const int heads : layout_.moba_heads) {
    MobaLanes& lanes = local_.moba.emplace_back();
    lanes.gate_bound.resize(static_cast<std::size_t>(heads));
    lanes.norm_bound.resize(static_cast<std::size_t>(heads));
    lanes.clear();
  }
  local_.ep.resize(layout_.ep_layers);
  ep_times_.waits.resize(static_cast<std::size_t>(parts_.model.expert_ranks));
  sum_.resize(layout_.sum_size());
  max_.resize(layout_.max_size());
  stopwatch_.restart(parts_.clock.now());
}

Runtime::~Runtime() {
  // The last flush may take its two seconds; a signal in them must not look like a failed rank.
  parts_.telemetry.reset();
  forget_preemption_agent(*this);
}

Status Runtime::check_equal_settings() {
  std::string settings;
  for (const double value :
       {static_cast<double>(layout_.groups),
        decide_options_.clip_norm,
        static_cast<double>(decide_options_.checkpoint_interval),
        static_cast<double>(decide_options_.total_steps),
        decide_options_.checkpoints_enabled ? 1.0 : 0.0,
        static_cast<double>(parts_.options.digest_interval),
        parts_.options.qk_clip_threshold,
        state_.guard.loss_scale,
        static_cast<double>(parts_.model.expert_ranks),
        parts_.options.allow_attention_change ? 1.0 : 0.0}) {
    settings += exact_text(value) + ' ';
  }
  for (const optimizer::AttentionLayer& layer : parts_.model.attention) {
    settings += text_of(layer);
  }
  for (const int experts : layout_.experts) {
    settings += std::to_string(experts) + ' ';
  }
  if (parts_.model.attention_schedule) {
    settings += parts_.model.attention_schedule->to_string();
  }
  return comm::agree(
      parts_.world,
      hash64(std::as_bytes(std::span{settings})),
      "attention and MoE layers, attention_schedule, allow_attention_change, expert_ranks, "
      "clip_norm, checkpoint_interval, checkpoint folder, total_steps, digest_interval and "
      "qk_clip_threshold",
      deadline());
}

Deadline Runtime::deadline() const {
  return Deadline::after(parts_.options.collective_timeout);
}

}  // namespace muster::agent
