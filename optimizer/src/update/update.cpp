// SPDX-License-Identifier: Apache-2.0
#include "optimizer/src/update/update.h"

#include <muster/optimizer/rules/sgd.h>

namespace muster::optimizer {
namespace {

kernels::UpdateStatistics update_slice(
    const kernels::UpdateTensors& tensors,
    Rule rule,
    const OptimizerOptions& options,
    const kernels::UpdateStep& step) {
  switch (rule) {
    case Rule::kAdamW:
      return update_adamw(tensors, step, options.adamw);
    case Rule::kAdam:
      return update_adam(tensors, step, options.adam);
    case Rule::kSgd:
      return update_sgd(tensors, step);
    case Rule::kMomentum:
      return update_momentum(tensors, step, options.momentum);
    case Rule::kRmsProp:
      return update_rmsprop(tensors, step, options.rmsprop);
    case Rule::kMuon:
      break;
  }
  fail_check("rule != kMuon", __FILE__, __LINE__, "Muon moves whole matrices, not elements");
}

}  // namespace

kernels::UpdateStep update_step(
    const RoutedParameter& parameter,
    const OptimizerOptions& options,
    const StepDecision& decision,
    std::int64_t step) {
  const double clip =
      decision.group_clip_factors.empty()
          ? decision.clip_factor
          : decision.group_clip_factors[static_cast<std::size_t>(parameter.group_index)];
  kernels::UpdateStep made;
  made.learning_rate = decision.learning_rate * parameter.route.learning_rate_scale;
  made.weight_decay = parameter.route.weight_decay;
  made.gradient_scale = decision.gradient_scale * clip;
  made.step = step;
  made.seed = options.seed;
  made.statistics = options.statistics;
  made.code_rounding = options.code_rounding;
  return made;
}

kernels::UpdateStatistics update_elementwise(
    ShardState& shard,
    Rule rule,
    const OptimizerOptions& options,
    const kernels::UpdateStep& step) {
  kernels::UpdateStatistics statistics;
  for_each_slice(shard, 0, shard.range.size, [&](std::size_t begin, std::size_t count) {
    statistics.add(update_slice(tensors_of(shard, begin, count), rule, options, step));
  });
  return statistics;
}

kernels::UpdateStatistics update_direction(
    ShardState& shard,
    std::size_t begin,
    std::size_t count,
    const MuonOptions& options,
    const kernels::UpdateStep& step,
    float* direction) {
  kernels::UpdateStatistics statistics;
  for_each_slice(shard, begin, count, [&](std::size_t at, std::size_t part) {
    statistics.add(
        update_muon_momentum(tensors_of(shard, at, part), step, options, direction + (at - begin)));
  });
  return statistics;
}

std::vector<StateKind> state_kinds(Rule rule) {
  switch (rule) {
    case Rule::kAdamW:
      return {{"adamw_m"}, {"adamw_v", true, false}};
    case Rule::kAdam:
      return {{"adam_m"}, {"adam_v", true, false}};
    case Rule::kMomentum:
      return {{"momentum"}};
    case Rule::kRmsProp:
      return {{"rmsprop_v", true, false}};
    case Rule::kMuon:
      return {{"muon_momentum"}};
    case Rule::kSgd:
      break;
  }
  return {};
}

void accumulate(
    GroupUpdateStatistics& group, std::size_t count, const kernels::UpdateStatistics& part) {
  group.element_count += static_cast<std::int64_t>(count);
  group.elements.add(part);
}

}  // namespace muster::optimizer
