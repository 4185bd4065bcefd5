#include "src/zero1_optimizer.h"

#include <muster/common/hash.h>
#include <muster/optimizer/newton_schulz_sets.h>

#include <algorithm>
#include <cmath>

namespace muster::optimizer {

Zero1Optimizer::Zero1Optimizer(
    Routing routing,
    OptimizerOptions options,
    std::vector<Region> regions,
    ExpertPosition expert_position)
    : routing_(std::move(routing)),
      options_(std::move(options)),
      regions_(std::move(regions)),
      expert_position_(expert_position),
      coefficients_(newton_schulz_coefficients(
          options_.muon.newton_schulz_set, options_.muon.newton_schulz_steps)),
      update_statistics_(routing_.group_names.size()) {
  for (const RoutedParameter& routed : routing_.parameters) {
    index_of_.emplace(routed.spec.name, parameters_.size());
    parameters_.push_back({routed.spec, routed.route, routed.group_index, {}, {}});
  }
  for (const Region& region : regions_) {
    adopt(region);
  }
}

void Zero1Optimizer::adopt(const Region& region) {
  for (const PlacedParameter& placed : region.plan().placed) {
    const std::size_t size = routing_.parameters[placed.parameter].size;
    Parameter& parameter = parameters_[placed.parameter];
    parameter.value = region.values().subspan(placed.begin, size);
    parameter.gradient = region.gradients().subspan(placed.begin, size);
  }
  for (const Piece& piece : pieces_of(region.plan(), routing_, region.holders().rank())) {
    Shard shard;
    shard.parameter = piece.parameter;
    shard.parameter_begin = piece.parameter_begin;
    shard.value = region.values().subspan(piece.region_begin, piece.size);
    shard.gradient = region.gradients().subspan(piece.region_begin, piece.size);
    shard.momentum.assign(piece.size, 0.0F);
    if (region.plan().rule == Rule::kAdamW) {
      shard.second_moment.assign(piece.size, 0.0F);
    }
    shards_.push_back(std::move(shard));
  }
}

Parameter* Zero1Optimizer::find(std::string_view name) {
  const auto at = index_of_.find(name);
  return at == index_of_.end() ? nullptr : &parameters_[at->second];
}

Status Zero1Optimizer::reduce_gradients(Deadline deadline) {
  nonfinite_before_reduction_ = 0;
  for (Region& region : regions_) {
    // A sum can hide what went in (Inf - Inf is one NaN, a kernel may drop NaN): look first.
    if (region.holders().size() > 1) {
      nonfinite_before_reduction_ +=
          kernels::norm_and_nonfinite(region.gradients()).nonfinite_count;
    }
    MUSTER_RETURN_IF_ERROR(region.reduce_gradients(deadline).context("reducing gradients"));
  }
  return {};
}

LocalStatistics Zero1Optimizer::local_statistics() {
  LocalStatistics statistics;
  statistics.squared_norm.assign(routing_.group_names.size(), 0.0);
  statistics.nonfinite_count = nonfinite_before_reduction_;
  for (const Shard& shard : shards_) {
    const kernels::NormAndNonfinite one = kernels::norm_and_nonfinite(shard.gradient);
    const int group = routing_.parameters[shard.parameter].group_index;
    statistics.squared_norm[static_cast<std::size_t>(group)] += one.squared_sum;
    statistics.nonfinite_count += one.nonfinite_count;
  }
  return statistics;
}

void Zero1Optimizer::apply(const StepDecision& decision) {
  std::fill(update_statistics_.begin(), update_statistics_.end(), GroupUpdateStatistics{});
  if (decision.skip) {
    return;
  }
  UpdateStep step;
  step.learning_rate = decision.learning_rate;
  step.gradient_scale = decision.gradient_scale * decision.clip_factor;
  step.step = applied_steps_ + 1;
  for (Shard& shard : shards_) {
    const RoutedParameter& parameter = routing_.parameters[shard.parameter];
    const kernels::UpdateStatistics part =
        parameter.route.rule == Rule::kMuon
            ? update_muon(shard, parameter, options_.muon, coefficients_, step, scratch_)
            : update_adamw(shard, parameter, options_.adamw, step);
    const auto group = static_cast<std::size_t>(parameter.group_index);
    accumulate(update_statistics_[group], shard.value.size(), part);
  }
  ++applied_steps_;
}

Expected<std::size_t> Zero1Optimizer::checked_rows(const HeadScale& scale) const {
  const auto at = index_of_.find(scale.parameter);
  if (at == index_of_.end()) {
    return not_found("QK-clip: there is no parameter '" + scale.parameter + "'");
  }
  const ParameterSpec& spec = routing_.parameters[at->second].spec;
  if (spec.shape.size() != 2) {
    return invalid_argument("QK-clip: parameter '" + spec.name + "' is not a matrix [rows, cols]");
  }
  if (scale.row_begin < 0 || scale.row_begin > scale.row_end || scale.row_end > spec.shape[0]) {
    return invalid_argument(
        "QK-clip: rows [" + std::to_string(scale.row_begin) + ", " + std::to_string(scale.row_end) +
        ") do not lie in parameter '" + spec.name + "' of " + std::to_string(spec.shape[0]) +
        " rows");
  }
  if (!std::isfinite(scale.factor) || scale.factor <= 0) {
    return invalid_argument(
        "QK-clip: factor " + std::to_string(scale.factor) + " for parameter '" + spec.name +
        "' is not a positive finite number");
  }
  return at->second;
}

Status Zero1Optimizer::scale_heads(std::span<const HeadScale> scales) {
  for (const HeadScale& scale : scales) {
    MUSTER_RETURN_IF_ERROR(checked_rows(scale).status());
  }
  for (const HeadScale& scale : scales) {
    const std::size_t index = index_of_.find(scale.parameter)->second;
    const auto cols = static_cast<std::size_t>(routing_.parameters[index].spec.shape[1]);
    const std::size_t first = static_cast<std::size_t>(scale.row_begin) * cols;
    const std::size_t last = static_cast<std::size_t>(scale.row_end) * cols;
    for (Shard& shard : shards_) {
      if (shard.parameter != index) {
        continue;
      }
      const std::size_t begin = std::max(first, shard.parameter_begin);
      const std::size_t end = std::min(last, shard.parameter_begin + shard.value.size());
      for (std::size_t i = begin; i < end; ++i) {
        shard.value[i - shard.parameter_begin] *= static_cast<float>(scale.factor);
      }
    }
  }
  return {};
}

Status Zero1Optimizer::gather_parameters(Deadline deadline) {
  for (Region& region : regions_) {
    MUSTER_RETURN_IF_ERROR(region.gather_values(deadline).context("gathering parameters"));
  }
  return {};
}

void Zero1Optimizer::zero_gradients() {
  for (Region& region : regions_) {
    std::fill(region.gradients().begin(), region.gradients().end(), 0.0F);
  }
}

std::uint64_t Zero1Optimizer::replica_digest() const {
  constexpr std::uint64_t kMask = (std::uint64_t{1} << 52) - 1;
  std::vector<std::uint64_t> hashes;
  for (const Region& region : regions_) {
    if (region.plan().placement == Placement::kReplicated) {
      hashes.push_back(hash64(std::as_bytes(region.values())));
    }
  }
  const std::uint64_t digest = hash64(std::as_bytes(std::span{hashes})) & kMask;
  return digest == 0 ? 1 : digest;  // 0 means "not computed" in the verdict.
}

StateTensor Zero1Optimizer::place(const Shard& shard) const {
  const RoutedParameter& parameter = routing_.parameters[shard.parameter];
  const bool expert = parameter.spec.placement == Placement::kExpert;
  const std::int64_t groups = expert ? expert_position_.groups : 1;
  const std::int64_t group = expert ? expert_position_.index : 0;
  StateTensor tensor;
  if (parameter.route.rule == Rule::kAdamW) {
    const auto size = static_cast<std::int64_t>(parameter.size);
    tensor.shape = {static_cast<std::int64_t>(shard.value.size())};
    tensor.global_shape = {size * groups};
    tensor.offset = {size * group + static_cast<std::int64_t>(shard.parameter_begin)};
    return tensor;
  }
  tensor.shape = parameter.spec.shape;
  tensor.global_shape = parameter.spec.shape;
  tensor.global_shape[0] *= groups;
  tensor.offset.assign(tensor.shape.size(), 0);
  tensor.offset[0] = parameter.spec.shape[0] * group;
  if (tensor.shape.size() == 3) {
    const std::size_t matrix = parameter.size / parameter.matrices;
    tensor.shape[0] = static_cast<std::int64_t>(shard.value.size() / matrix);
    tensor.offset[0] += static_cast<std::int64_t>(shard.parameter_begin / matrix);
  }
  return tensor;
}

std::vector<StateTensor> Zero1Optimizer::state() {
  std::vector<StateTensor> tensors;
  for (Shard& shard : shards_) {
    const RoutedParameter& parameter = routing_.parameters[shard.parameter];
    const auto add = [&](const char* kind, std::span<float> data) {
      StateTensor tensor = place(shard);
      tensor.name = std::string{kind} + "/" + parameter.spec.name;
      tensor.data = data;
      tensors.push_back(std::move(tensor));
    };
    add("param", shard.value);
    if (parameter.route.rule == Rule::kMuon) {
      add("muon_momentum", shard.momentum);
    } else {
      add("adamw_m", shard.momentum);
      add("adamw_v", shard.second_moment);
    }
  }
  return tensors;
}

std::string Zero1Optimizer::describe_plan() const {
  std::string text;
  for (const Region& region : regions_) {
    text += describe(region.plan());
  }
  return text;
}

}  // namespace muster::optimizer
