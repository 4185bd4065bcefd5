// SPDX-License-Identifier: Apache-2.0
#include "trainer/moe_lm/src/expert_runtime.h"

#include "trainer/moe_lm/src/parameters.h"

#include <algorithm>
#include <string>
#include <utility>

namespace muster::moe_lm {
namespace {

// Largest number of tokens of a rank in one pass, in training or in evaluation.
std::int64_t tokens_of_a_pass(const TrainOptions& options, int world_size) {
  const std::int64_t training = options.batch / world_size / options.micro_batches;
  const std::int64_t evaluation = options.eval_every > 0 ? options.eval_sequences / world_size : 0;
  return std::max(training, evaluation) * options.model.sequence;
}

}  // namespace

ExpertRuntime::ExpertRuntime(
    const TrainOptions& options,
    int world_size,
    comm::Communicator& ranks,
    std::chrono::nanoseconds timeout)
    : options_(options), ranks_(ranks), timeout_(timeout) {
  const ModelShape& model = options.model;
  parallel::EpShape& shape = layer_.exchange.shape;
  shape.ranks = ranks.size();
  shape.experts = static_cast<int>(model.experts);
  shape.top_k = static_cast<int>(model.top_k);
  shape.tokens_max = tokens_of_a_pass(options, world_size);
  if (options.experts.tolerance > 0) {
    layer_.exchange.balance.mode = parallel::EpBalanceMode::kTolerant;
    layer_.exchange.balance.tolerance = options.experts.tolerance;
  }
  layer_.exchange.hidden = model.d_model;
  layer_.ffn = model.ffn;
  if (options.experts.exchange == ExpertExchange::kMuster) {
    layer_.exchange.type = options.update.parameter_type;
    if (layer_.exchange.type == DType::kBFloat16) {
      // A token's rows on one rank are summed there and sent as one.
      layer_.exchange.numerics = parallel::EpNumerics::kWireExact;
    }
  }
}

Expected<std::unique_ptr<ExpertRuntime>> ExpertRuntime::create(
    const TrainOptions& options,
    int world_size,
    comm::Communicator& ranks,
    std::chrono::nanoseconds timeout) {
  std::unique_ptr<ExpertRuntime> runtime{new ExpertRuntime{options, world_size, ranks, timeout}};
  if (options.experts.exchange == ExpertExchange::kMuster) {
    MUSTER_ASSIGN_OR_RETURN(
        runtime->group_,
        parallel::ExpertGroup::create(
            ranks, runtime->layer_, runtime->home_bytes(), runtime->deadline()));
    MUSTER_RETURN_IF_ERROR(runtime->open_trace());
  }
  return runtime;
}

// Bytes of values and gradients of all expert parameters. The optimizer allocates whole regions,
// which end on a page.
std::size_t ExpertRuntime::home_bytes() const {
  std::size_t bytes = 0;
  for (const auto& spec : parameter_specs(options_.model, ranks_.size(), options_.update)) {
    if (spec.placement == optimizer::Placement::kExpert) {
      std::size_t elements = 1;
      for (const std::int64_t size : spec.shape) {
        elements *= static_cast<std::size_t>(size);
      }
      bytes += elements * (static_cast<std::size_t>(size_bytes(spec.dtype)) + sizeof(float)) +
               4 * comm::kSymmetricGranularity;
    }
  }
  return bytes;
}

Status ExpertRuntime::open_trace() {
  if (options_.experts.trace.empty()) {
    return {};
  }
  auto opened = parallel::EpTraceWriter::open(
      options_.experts.trace.string() + ".rank-" + std::to_string(ranks_.rank()),
      {layer_.exchange.shape, layer_.exchange.balance},
      {});
  if (!opened) {
    return opened.status().context("--ep-trace");
  }
  trace_ = std::move(*opened);
  return {};
}

Status ExpertRuntime::trace(
    std::int64_t layer,
    std::int64_t step,
    const parallel::EpPlan& plan,
    std::span<const std::int32_t> choices) {
  if (!trace_) {
    return {};
  }
  Status written = trace_->append(static_cast<int>(layer), step, plan, choices);
  if (!written.ok()) {
    trace_.reset();
  }
  return written;
}

std::function<Expected<std::span<std::byte>>(std::size_t)> ExpertRuntime::memory_source() {
  if (group_ == nullptr) {
    return {};
  }
  return [this](std::size_t bytes) { return group_->allocate(bytes); };
}

Expected<std::unique_ptr<parallel::ExpertLayer>> ExpertRuntime::make_layer(
    std::int64_t layer, optimizer::Optimizer& optimizer, Weights& weights) {
  const auto name = [layer](const char* projection) {
    return layer_name(layer, std::string{"moe.experts."} + projection);
  };
  if (group_ == nullptr) {
    const Weight* gate = weights.find(name("gate"));
    const Weight* up = weights.find(name("up"));
    const Weight* down = weights.find(name("down"));
    return parallel::make_all_to_all_layer(
        ranks_,
        layer_,
        {gate->value, up->value, down->value, gate->gradient, up->gradient, down->gradient});
  }
  const auto home = [&](const char* projection) {
    const optimizer::Parameter* parameter = optimizer.find(name(projection));
    const void* values = parameter->value.data();
    return parallel::ExpertGroup::Home{
        values != nullptr ? values : parameter->value16.data(), parameter->gradient.data()};
  };
  return group_->make_layer(
      "layer " + std::to_string(layer), home("gate"), home("up"), home("down"));
}

Expected<ExpertLayers> ExpertRuntime::make_layers(
    optimizer::Optimizer& optimizer, Weights& weights) {
  if (group_ != nullptr) {
    MUSTER_RETURN_IF_ERROR(group_->seal(deadline()));
  }
  ExpertLayers layers;
  for (std::int64_t layer = 0; layer < options_.model.layers; ++layer) {
    MUSTER_ASSIGN_OR_RETURN(auto made, make_layer(layer, optimizer, weights));
    layers.push_back(std::move(made));
  }
  return layers;
}

}  // namespace muster::moe_lm
