// SPDX-License-Identifier: Apache-2.0
#include "optimizer/src/layout/layout.h"

#include "optimizer/src/layout/build.h"

#include <algorithm>
#include <set>

namespace muster::optimizer {
namespace {

BufferKey key_of(const RoutedParameter& parameter) {
  return {parameter.spec.placement, parameter.route.rule == Rule::kMuon, parameter.spec.dtype};
}

std::vector<std::size_t> select(const Routing& routing, const BufferKey& key) {
  std::vector<std::size_t> selected;
  for (std::size_t i = 0; i < routing.parameters.size(); ++i) {
    if (key_of(routing.parameters[i]) == key) {
      selected.push_back(i);
    }
  }
  return selected;
}

void plan_matrices(BufferPlan& plan, const LayoutInput& input) {
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

BufferPlan build_buffer(
    const Routing& routing,
    const OptimizerOptions& options,
    const BufferKey& key,
    int ranks,
    bool detailed,
    const ShardVisitor& visit) {
  BufferPlan plan;
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

BufferPlan plan_buffer(
    const Routing& routing, const OptimizerOptions& options, const BufferKey& key, int ranks) {
  std::vector<std::vector<Shard>> shards(static_cast<std::size_t>(ranks));
  BufferPlan plan =
      build_buffer(routing, options, key, ranks, true, [&](int rank, const Shard& shard) {
        shards[static_cast<std::size_t>(rank)].push_back(shard);
      });
  plan.shards = std::move(shards);
  return plan;
}

std::vector<BufferKey> buffer_keys(const Routing& routing) {
  std::set<BufferKey> keys;
  for (const RoutedParameter& parameter : routing.parameters) {
    keys.insert(key_of(parameter));
  }
  return {keys.begin(), keys.end()};
}

}  // namespace muster::optimizer
