#include "src/layout.h"
#include "src/zero1_optimizer.h"

#include <iomanip>
#include <sstream>

namespace muster::optimizer {
namespace {

std::string hashes_text(std::span<const std::int64_t> hashes) {
  std::ostringstream text;
  for (std::size_t rank = 0; rank < hashes.size(); ++rank) {
    text << (rank == 0 ? "" : ", ") << "rank " << rank << ": ";
    if (hashes[rank] == 0) {
      text << "refused its own";
    } else {
      text << std::hex << std::setw(16) << std::setfill('0')
           << static_cast<std::uint64_t>(hashes[rank]) << std::dec;
    }
  }
  return text.str();
}

// `hash` 0: this rank has found its own parameters unusable and says so, so that nobody waits for
// it.
Status compare_plans(std::uint64_t hash, comm::Communicator& world, Deadline deadline) {
  const auto ranks = static_cast<std::size_t>(world.size());
  std::vector<std::int64_t> hashes(ranks, 0);
  hashes[static_cast<std::size_t>(world.rank())] = static_cast<std::int64_t>(hash);
  const std::vector<std::size_t> counts(ranks, 1);
  MUSTER_RETURN_IF_ERROR(
      world.all_gather(std::span{hashes}, counts, deadline).context("comparing optimizer plans"));
  for (const std::int64_t other : hashes) {
    if (other != hashes.front()) {
      return failed_precondition(
          "ranks were given different parameters, routes or hyperparameters (plan hashes: " +
          hashes_text(hashes) + "); start all ranks with the same model and options");
    }
  }
  return {};
}

Expected<Routing> check_locally(
    std::vector<ParameterSpec> specs, const OptimizerOptions& options, bool has_expert_peers) {
  MUSTER_RETURN_IF_ERROR(validate(options));
  MUSTER_ASSIGN_OR_RETURN(Routing routing, route(std::move(specs), options.routes));
  for (const RoutedParameter& parameter : routing.parameters) {
    if (parameter.spec.placement == Placement::kExpert && !has_expert_peers) {
      return invalid_argument(
          "parameter '" + parameter.spec.name +
          "' is an expert parameter, but no communicator of expert peers was given");
    }
  }
  return routing;
}

Expected<std::vector<Region>> make_regions(
    const Routing& routing,
    const OptimizerOptions& options,
    comm::Communicator& world,
    comm::Communicator* expert_peers,
    Deadline deadline) {
  std::vector<Region> regions;
  for (const Placement placement : {Placement::kReplicated, Placement::kExpert}) {
    for (const Rule rule : {Rule::kAdamW, Rule::kMuon}) {
      if (placement == Placement::kExpert && expert_peers == nullptr) {
        continue;
      }
      comm::Communicator& holders = placement == Placement::kExpert ? *expert_peers : world;
      RegionPlan plan =
          plan_region(routing, placement, rule, holders.size(), options.muon.newton_schulz_steps);
      if (plan.size == 0) {
        continue;
      }
      MUSTER_ASSIGN_OR_RETURN(
          Region region, Region::create(std::move(plan), world, holders, deadline));
      regions.push_back(std::move(region));
    }
  }
  return regions;
}

}  // namespace

Expected<std::unique_ptr<Optimizer>> Optimizer::create(
    std::vector<ParameterSpec> specs,
    OptimizerOptions options,
    comm::Communicator& world,
    comm::Communicator* expert_peers,
    Deadline deadline) {
  auto routing = check_locally(std::move(specs), options, expert_peers != nullptr);
  const std::uint64_t hash = routing ? plan_hash(*routing, options) : 0;
  const Status agreed = compare_plans(hash, world, deadline);
  if (!routing) {
    return routing.status();
  }
  MUSTER_RETURN_IF_ERROR(agreed);
  ExpertPosition position;
  if (expert_peers != nullptr) {
    MUSTER_ASSIGN_OR_RETURN(position, find_expert_position(world, *expert_peers, deadline));
  }
  MUSTER_ASSIGN_OR_RETURN(
      auto regions, make_regions(*routing, options, world, expert_peers, deadline));
  std::unique_ptr<Optimizer> optimizer = std::make_unique<Zero1Optimizer>(
      std::move(*routing), std::move(options), std::move(regions), position);
  return optimizer;
}

}  // namespace muster::optimizer
