// SPDX-License-Identifier: Apache-2.0
// Resources that the expert layers of one rank share: the ranks that hold one set of experts and,
// with --ep muster, their symmetric heap.
#pragma once

#include "trainer/moe_lm/src/options.h"
#include "trainer/moe_lm/src/weights.h"

#include <muster/comm/communicator.h>
#include <muster/optimizer/optimizer.h>
#include <muster/parallel/experts/layer.h>
#include <muster/parallel/experts/trace.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace muster::moe_lm {

using ExpertLayers = std::vector<std::unique_ptr<parallel::ExpertLayer>>;

// Order of use: create, memory_source for the optimizer's options, the optimizer, make_layers.
// Not thread-safe; must outlive the layers and the optimizer.
class ExpertRuntime {
 public:
  // Collective over `ranks`, which must outlive it. kUnimplemented if --ep muster cannot run.
  [[nodiscard]] static Expected<std::unique_ptr<ExpertRuntime>> create(
      const TrainOptions& options,
      int world_size,
      comm::Communicator& ranks,
      std::chrono::nanoseconds timeout);

  // Returns OptimizerOptions::expert_memory; empty if the optimizer may use its own memory.
  [[nodiscard]] std::function<Expected<std::span<std::byte>>(std::size_t)> memory_source();

  // Makes one layer per block, over the optimizer's expert parameters. Collective.
  [[nodiscard]] Expected<ExpertLayers> make_layers(
      optimizer::Optimizer& optimizer, Weights& weights);

  [[nodiscard]] Deadline deadline() const { return Deadline::after(timeout_); }

  // Type of the rows between the blocks and their experts.
  [[nodiscard]] DType row_type() const { return layer_.exchange.type; }

  [[nodiscard]] comm::Communicator& ranks() const { return ranks_; }

  [[nodiscard]] bool balanced() const { return group_ != nullptr; }

  // Adds the plan of a pass to --ep-trace, if given. The first error is returned and ends the
  // recording.
  [[nodiscard]] Status trace(
      std::int64_t layer,
      std::int64_t step,
      const parallel::EpPlan& plan,
      std::span<const std::int32_t> choices);

 private:
  ExpertRuntime(
      const TrainOptions& options,
      int world_size,
      comm::Communicator& ranks,
      std::chrono::nanoseconds timeout);

  [[nodiscard]] std::size_t home_bytes() const;
  [[nodiscard]] Expected<std::unique_ptr<parallel::ExpertLayer>> make_layer(
      std::int64_t layer, optimizer::Optimizer& optimizer, Weights& weights);
  [[nodiscard]] Status open_trace();

  TrainOptions options_;
  comm::Communicator& ranks_;
  std::chrono::nanoseconds timeout_;
  parallel::ExpertLayerOptions layer_;
  std::unique_ptr<parallel::ExpertGroup> group_;
  std::optional<parallel::EpTraceWriter> trace_;
};

}  // namespace muster::moe_lm
