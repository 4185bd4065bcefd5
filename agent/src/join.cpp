// Building an agent: checks the settings against the world, opens the writer and the uplink.
#include "src/runtime.h"

#include <muster/common/hash.h>

#include <array>
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

Status check_model(const ModelInfo& model, optimizer::Optimizer& optimizer) {
  for (const optimizer::AttentionLayer& layer : model.attention) {
    for (const std::string& name : {layer.query_parameter, layer.key_parameter}) {
      const optimizer::Parameter* parameter = optimizer.find(name);
      if (parameter == nullptr) {
        return not_found(
            "attention layer " + std::to_string(layer.layer) + " names parameter '" + name +
            "', which the optimizer does not have");
      }
      const std::int64_t rows = std::int64_t{layer.heads} * layer.head_dim;
      if (parameter->spec.shape.size() != 2 || parameter->spec.shape[0] != rows) {
        return invalid_argument(
            "parameter '" + name + "' must have " + std::to_string(rows) +
            " rows, heads times head_dim of attention layer " + std::to_string(layer.layer));
      }
    }
  }
  for (const int experts : model.experts_per_layer) {
    if (experts <= 0) {
      return invalid_argument("an MoE layer needs at least one expert");
    }
  }
  return {};
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
  MUSTER_RETURN_IF_ERROR(check_model(model, optimizer));
  const Clock& clock = clock_of(options);
  MetricCatalog catalog{model, groups_of(optimizer), world.rank() == 0};
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
      std::move(telemetry)});
  MUSTER_RETURN_IF_ERROR(runtime->check_equal_settings());
  return std::unique_ptr<Agent>{std::move(runtime)};
}

Runtime::Runtime(Parts parts)
    : parts_(std::move(parts)),
      layout_(layout_of(parts_.model, parts_.optimizer.group_names().size())) {
  decide_options_.clip_norm = parts_.optimizer.options().clip_norm;
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
  std::vector<double> settings{
      static_cast<double>(layout_.groups),
      decide_options_.clip_norm,
      static_cast<double>(decide_options_.checkpoint_interval),
      static_cast<double>(decide_options_.total_steps),
      decide_options_.checkpoints_enabled ? 1.0 : 0.0,
      static_cast<double>(parts_.options.digest_interval),
      parts_.options.qk_clip_threshold};
  settings.insert(settings.end(), layout_.heads.begin(), layout_.heads.end());
  settings.push_back(-1.0);
  settings.insert(settings.end(), layout_.experts.begin(), layout_.experts.end());
  const auto digest = static_cast<double>(hash64(std::as_bytes(std::span{settings})) >> 12U);
  std::array<double, 2> range{digest, -digest};
  MUSTER_RETURN_IF_ERROR(
      parts_.world.all_reduce(std::span<double>{range}, comm::ReduceOp::kMax, deadline())
          .context("joining"));
  if (range[0] != -range[1]) {
    return invalid_argument(
        "ranks were started with different settings: model layers, clip_norm, "
        "checkpoint_interval, checkpoint folder, total_steps, digest_interval and "
        "qk_clip_threshold must be equal on all ranks");
  }
  return {};
}

Deadline Runtime::deadline() const {
  return Deadline::after(parts_.options.collective_timeout);
}

}  // namespace muster::agent
