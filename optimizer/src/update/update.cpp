#include "optimizer/src/update/update.h"

#include <muster/optimizer/rules/sgd.h>

#include <algorithm>

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
  group.update_squared_sum += part.update_squared_sum;
  group.update_abs_max = std::max(group.update_abs_max, part.update_abs_max);
  group.parameter_squared_sum += part.parameter_squared_sum;
  group.parameter_abs_max = std::max(group.parameter_abs_max, part.parameter_abs_max);
  group.gradient_squared_sum += part.gradient_squared_sum;
  group.momentum_squared_sum += part.momentum_squared_sum;
  group.momentum_sum += part.momentum_sum;
  group.momentum_abs_max = std::max(group.momentum_abs_max, part.momentum_abs_max);
  group.momentum_gradient_sum += part.momentum_gradient_sum;
  group.second_moment_sum += part.second_moment_sum;
  group.second_moment_squared_sum += part.second_moment_squared_sum;
  group.second_moment_abs_max = std::max(group.second_moment_abs_max, part.second_moment_abs_max);
  group.second_moment_before_sum += part.second_moment_before_sum;
  group.staleness_sum += part.staleness_sum;
  group.second_moment_tiny_count += part.second_moment_tiny_count;
}

}  // namespace muster::optimizer
