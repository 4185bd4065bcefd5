// SPDX-License-Identifier: Apache-2.0
#include "optimizer/src/layout/layout.h"
#include "optimizer/src/zero1/zero1.h"

#include <muster/comm/agree.h>

#include <optional>

namespace muster::optimizer {
namespace {

Expected<Routing> check_locally(
    std::vector<ParameterSpec> specs, const OptimizerOptions& options, bool has_expert_peers) {
  MUSTER_RETURN_IF_ERROR(validate(options));
  MUSTER_ASSIGN_OR_RETURN(Routing routing, route(std::move(specs), options.routes));
  MUSTER_RETURN_IF_ERROR(check_routes(routing, options.routes));
  MUSTER_RETURN_IF_ERROR(validate(options.clipping, routing.group_names));
  for (const RoutedParameter& parameter : routing.parameters) {
    if (parameter.spec.placement == Placement::kExpert && !has_expert_peers) {
      return invalid_argument(
          "parameter '" + parameter.spec.name +
          "' is an expert parameter, but no communicator of expert peers was given");
    }
  }
  return routing;
}

// Creates the communicators of the communication thread, with the same ranks in the same order.
Status split_for_comm_thread(
    Zero1Setup& setup,
    comm::Communicator& world,
    comm::Communicator* expert_peers,
    Deadline deadline) {
  for (comm::Communicator* parent : {&world, expert_peers}) {
    if (parent == nullptr) {
      continue;
    }
    MUSTER_ASSIGN_OR_RETURN(auto own, parent->split(0, parent->rank(), deadline));
    setup.communicators.push_back(std::move(own));
  }
  return {};
}

Status make_buffers(
    Zero1Setup& setup,
    comm::Communicator& world,
    comm::Communicator* expert_peers,
    Deadline deadline) {
  const auto& own = setup.communicators;
  for (const BufferKey& key : buffer_keys(setup.routing)) {
    const bool expert = key.placement == Placement::kExpert;
    BufferCommunicators communicators{};
    communicators.memory = own.empty() ? &world : own.front().get();
    communicators.holders = expert ? expert_peers : &world;
    communicators.buckets = own.empty() ? communicators.holders : own[expert ? 1 : 0].get();
    BufferPlan plan = plan_buffer(setup.routing, setup.options, key, communicators.holders->size());
    MUSTER_ASSIGN_OR_RETURN(
        ParamBuffer buffer,
        ParamBuffer::create(
            std::move(plan), setup.routing, communicators, setup.options, deadline));
    setup.buffers.push_back(std::move(buffer));
  }
  return {};
}

}  // namespace

Expected<std::unique_ptr<Optimizer>> Optimizer::create(
    std::vector<ParameterSpec> specs,
    OptimizerOptions options,
    comm::Communicator& world,
    comm::Communicator* expert_peers,
    Deadline deadline) {
  auto routing = check_locally(std::move(specs), options, expert_peers != nullptr);
  const auto hash = routing ? std::optional{plan_hash(*routing, options)} : std::nullopt;
  const Status agreed = comm::agree(
      world,
      hash,
      "parameters, routes and hyperparameters of the optimizer",
      deadline,
      StatusCode::kFailedPrecondition);
  if (!routing) {
    return routing.status();
  }
  MUSTER_RETURN_IF_ERROR(agreed);
  Zero1Setup setup;
  setup.routing = std::move(*routing);
  setup.options = std::move(options);
  setup.world_size = world.size();
  if (expert_peers != nullptr) {
    MUSTER_ASSIGN_OR_RETURN(
        setup.expert_position, find_expert_position(world, *expert_peers, deadline));
    setup.expert_ranks = expert_peers->size();
  }
  if (setup.options.overlap) {
    MUSTER_RETURN_IF_ERROR(split_for_comm_thread(setup, world, expert_peers, deadline)
                               .context("communicators of the optimizer's own"));
  }
  MUSTER_RETURN_IF_ERROR(make_buffers(setup, world, expert_peers, deadline));
  std::unique_ptr<Optimizer> optimizer = std::make_unique<Zero1Optimizer>(std::move(setup));
  return optimizer;
}

}  // namespace muster::optimizer
