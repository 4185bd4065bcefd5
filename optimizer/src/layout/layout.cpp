#include "optimizer/src/layout/layout.h"

#include "optimizer/src/layout/build.h"

#include <algorithm>
#include <set>

namespace muster::optimizer {
namespace {

RegionKey key_of(const RoutedParameter& parameter) {
  return {parameter.spec.placement, parameter.route.rule == Rule::kMuon, parameter.spec.dtype};
}

std::vector<std::size_t> select(const Routing& routing, const RegionKey& key) {
  std::vector<std::size_t> selected;
  for (std::size_t i = 0; i < routing.parameters.size(); ++i) {
    if (key_of(routing.parameters[i]) == key) {
      selected.push_back(i);
    }
  }
  return selected;
}

void plan_matrices(RegionPlan& plan, const LayoutInput& input) {
  switch (plan.layout) {
    case Layout::kWholeMatrices:
      plan_whole(plan, input);
      break;
    case Layout::kFlatRedundant:
    case Layout::kFlatOwner:
      plan_flat(plan, input);
      break;
    case Layout::kRowShards:
      plan_row_shards(plan, input);
      break;
    case Layout::kReplicated:
      plan_replicated(plan, input);
      break;
  }
  finish_tasks(plan, input);
}

}  // namespace

RegionPlan build_region(
    const Routing& routing,
    const OptimizerOptions& options,
    const RegionKey& key,
    int ranks,
    bool detailed,
    const PieceVisitor& visit) {
  RegionPlan plan;
  plan.key = key;
  plan.layout = options.layout;
  plan.ranks = ranks;
  plan.newton_schulz_flops.assign(static_cast<std::size_t>(ranks), 0.0);
  std::vector<std::size_t> selected = select(routing, key);
  if (selected.empty()) {
    return plan;
  }
  std::vector<double> flops;
  if (key.matrices) {
    flops = flops_of_matrices(routing, selected, options.muon);
  }
  const LayoutInput input{
      routing, options, std::move(selected), ranks, detailed, std::move(flops), visit};
  if (key.matrices) {
    plan_matrices(plan, input);
  } else if (plan.layout == Layout::kReplicated) {
    plan_replicated(plan, input);
  } else {
    plan_elementwise(plan, input);
  }
  return plan;
}

RegionPlan plan_region(
    const Routing& routing, const OptimizerOptions& options, const RegionKey& key, int ranks) {
  std::vector<std::vector<Piece>> pieces(static_cast<std::size_t>(ranks));
  RegionPlan plan =
      build_region(routing, options, key, ranks, true, [&](int rank, const Piece& piece) {
        pieces[static_cast<std::size_t>(rank)].push_back(piece);
      });
  plan.pieces = std::move(pieces);
  return plan;
}

std::vector<RegionKey> region_keys(const Routing& routing) {
  std::set<RegionKey> keys;
  for (const RoutedParameter& parameter : routing.parameters) {
    keys.insert(key_of(parameter));
  }
  return {keys.begin(), keys.end()};
}

}  // namespace muster::optimizer
