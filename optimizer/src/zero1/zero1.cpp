// SPDX-License-Identifier: Apache-2.0
#include "optimizer/src/zero1/zero1.h"

#include "optimizer/src/state/load.h"
#include "optimizer/src/update/update.h"

#include <muster/common/hash.h>
#include <muster/common/text.h>
#include <muster/kernels/statistics.h>
#include <muster/optimizer/plan.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace muster::optimizer {
namespace {

std::unique_ptr<CommThread> make_comm_thread(const Zero1Setup& setup) {
  if (setup.communicators.empty()) {
    return nullptr;
  }
  std::vector<comm::Communicator*> all;
  for (const auto& communicator : setup.communicators) {
    all.push_back(communicator.get());
  }
  return std::make_unique<CommThread>([all = std::move(all)](std::string_view reason) {
    for (comm::Communicator* communicator : all) {
      communicator->abort(reason);
    }
  });
}

}  // namespace

Zero1Optimizer::Zero1Optimizer(Zero1Setup setup)
    : setup_(std::move(setup)),
      shard_of_(setup_.routing.parameters.size(), nullptr),
      shaped_(setup_.routing.parameters.size(), false),
      matrices_(setup_.routing, setup_.options),
      update_statistics_(setup_.routing.group_names.size()) {
  for (const RoutedParameter& routed : setup_.routing.parameters) {
    index_of_.emplace(routed.spec.name, parameters_.size());
    parameters_.push_back({routed.spec, routed.route, routed.group_index, {}, {}, {}});
  }
  std::vector<ParamBuffer*> buffers;
  for (ParamBuffer& buffer : setup_.buffers) {
    adopt(buffer);
    buffers.push_back(&buffer);
  }
  for (Part& part : parts_) {
    for (ShardState& shard : part.shards) {
      shard_of_[shard.range.parameter] = &shard;
    }
  }
  buckets_ = std::make_unique<BucketScheduler>(
      std::move(buffers), parameters_.size(), make_comm_thread(setup_));
}

void Zero1Optimizer::adopt(ParamBuffer& buffer) {
  const Routing& routing = setup_.routing;
  const BufferPlan& plan = buffer.plan();
  for (const PlacedParameter& placed : plan.placed) {
    const std::size_t size = routing.parameters[placed.parameter].size;
    Parameter& parameter = parameters_[placed.parameter];
    parameter.gradient = buffer.gradients().subspan(placed.begin, size);
    if (buffer.is_narrow()) {
      parameter.value16 = buffer.values16().subspan(placed.begin, size);
    } else {
      parameter.value = buffer.values().subspan(placed.begin, size);
    }
  }
  find_shaped(plan, routing, shaped_);
  Part part{&buffer, {}, {}, {}};
  const int rank = buffer.holders().rank();
  for (const Shard& range : plan.shards[static_cast<std::size_t>(rank)]) {
    part.shards.push_back(make_shard(buffer, range));
  }
  if (plan.key.matrices) {
    part.schedule = schedule_matrices(
        plan, routing, rank, std::max<std::size_t>(setup_.options.exchange_bytes / 4, 1));
  }
  if (setup_.options.clipping.agc.has_value()) {
    part.clipper.emplace(routing, *setup_.options.clipping.agc, plan);
  }
  parts_.push_back(std::move(part));
}

ShardState Zero1Optimizer::make_shard(const ParamBuffer& buffer, const Shard& range) const {
  const RoutedParameter& parameter = setup_.routing.parameters[range.parameter];
  const bool expert = parameter.spec.placement == Placement::kExpert;
  const std::size_t before = expert ? static_cast<std::size_t>(setup_.expert_position.index) : 0;
  ShardState shard;
  shard.range = range;
  shard.unit = parameter.unit;
  shard.first_index = static_cast<std::int64_t>(before * parameter.size + range.parameter_begin);
  shard.gradient = buffer.gradients().subspan(range.buffer_begin, range.size);
  shard.narrow_type = parameter.spec.dtype;
  if (buffer.is_narrow()) {
    shard.master.assign(range.size, 0.0F);
    shard.value = shard.master;
    shard.narrow_copy = buffer.values16().subspan(range.buffer_begin, range.size);
  } else {
    shard.value = buffer.values().subspan(range.buffer_begin, range.size);
  }
  for (const StateKind& kind : state_kinds(parameter.route.rule)) {
    const std::string name = std::string{kind.name} + "/" + parameter.spec.name;
    (kind.is_second ? shard.second : shard.first) =
        make_state(parameter.state_type, kind.is_signed, name, shard);
  }
  return shard;
}

Parameter* Zero1Optimizer::find(std::string_view name) {
  const auto at = index_of_.find(name);
  return at == index_of_.end() ? nullptr : &parameters_[at->second];
}

void Zero1Optimizer::count_collectives() {
  moved_.collectives = reduce_collectives_ + update_collectives_ + gather_collectives_;
}

Status Zero1Optimizer::reduce_gradients(Deadline deadline) {
  MUSTER_RETURN_IF_ERROR(buckets_->reduce(deadline));
  moved_ = {};
  moved_.reduce_scatter = buckets_->reduce_bytes();
  reduce_collectives_ = buckets_->reduce_count();
  update_collectives_ = 0;
  gather_collectives_ = 0;
  count_collectives();
  return {};
}

LocalStatistics Zero1Optimizer::local_statistics() {
  LocalStatistics statistics;
  statistics.squared_norm.assign(setup_.routing.group_names.size(), 0.0);
  statistics.nonfinite_count = buckets_->nonfinite_before_reduction();
  for (const Part& part : parts_) {
    for (const ShardState& shard : part.shards) {
      if (!shard.range.primary) {
        continue;
      }
      const kernels::NormAndNonfinite one = kernels::norm_and_nonfinite(shard.gradient);
      const int group = setup_.routing.parameters[shard.range.parameter].group_index;
      statistics.squared_norm[static_cast<std::size_t>(group)] += one.squared_sum;
      statistics.nonfinite_count += one.nonfinite_count;
    }
  }
  return statistics;
}

Status Zero1Optimizer::apply(const StepDecision& decision, Deadline deadline) {
  const std::size_t factors = decision.group_clip_factors.size();
  if (factors != 0 && factors != update_statistics_.size()) {
    return invalid_argument(
        "apply: ",
        factors,
        " clip factors for ",
        update_statistics_.size(),
        " groups; give one each or none");
  }
  std::fill(update_statistics_.begin(), update_statistics_.end(), GroupUpdateStatistics{});
  moved_.exchange = 0;
  moved_.agc = 0;
  update_collectives_ = 0;
  if (!decision.skip) {
    for (Part& part : parts_) {
      MUSTER_RETURN_IF_ERROR(apply_part(part, decision, deadline));
    }
    ++applied_steps_;
  }
  count_collectives();
  return {};
}

Status Zero1Optimizer::apply_part(Part& part, const StepDecision& decision, Deadline deadline) {
  comm::Communicator& holders = part.buffer->holders();
  if (part.clipper.has_value()) {
    std::vector<double> scale(update_statistics_.size(), decision.gradient_scale);
    for (std::size_t group = 0; group < scale.size(); ++group) {
      scale[group] *= decision.group_clip_factors.empty() ? decision.clip_factor
                                                          : decision.group_clip_factors[group];
    }
    MUSTER_RETURN_IF_ERROR(part.clipper->clip(part.shards, scale, holders, deadline));
    if (part.clipper->communicates()) {
      moved_.agc += part.clipper->bytes(holders.size());
      ++update_collectives_;
    }
  }
  if (!part.buffer->plan().key.matrices) {
    update_elements(part, decision);
    return {};
  }
  moved_.exchange += part.schedule.bytes;
  update_collectives_ += part.schedule.collectives;
  return matrices_.run(
      *part.buffer,
      part.schedule,
      part.shards,
      decision,
      applied_steps_ + 1,
      update_statistics_,
      deadline);
}

void Zero1Optimizer::update_elements(Part& part, const StepDecision& decision) {
  for (ShardState& shard : part.shards) {
    const RoutedParameter& parameter = setup_.routing.parameters[shard.range.parameter];
    kernels::UpdateStep step = update_step(parameter, setup_.options, decision, applied_steps_ + 1);
    step.statistics = step.statistics && shard.range.primary;
    const kernels::UpdateStatistics moved =
        update_elementwise(shard, parameter.route.rule, setup_.options, step);
    if (shard.range.primary) {
      accumulate(
          update_statistics_[static_cast<std::size_t>(parameter.group_index)],
          shard.range.size,
          moved);
    }
  }
}

Status Zero1Optimizer::gather_parameters(Deadline deadline) {
  MUSTER_RETURN_IF_ERROR(buckets_->gather(deadline));
  moved_.all_gather = buckets_->gather_bytes();
  gather_collectives_ = buckets_->gather_count();
  count_collectives();
  return {};
}

void Zero1Optimizer::zero_gradients() {
  for (ParamBuffer& buffer : setup_.buffers) {
    std::fill(buffer.gradients().begin(), buffer.gradients().end(), 0.0F);
  }
}

std::uint64_t Zero1Optimizer::replica_digest() const {
  constexpr std::uint64_t kMask = (std::uint64_t{1} << 52) - 1;
  std::vector<std::uint64_t> hashes;
  for (const ParamBuffer& buffer : setup_.buffers) {
    if (buffer.plan().key.placement == Placement::kReplicated) {
      hashes.push_back(hash64(
          buffer.is_narrow() ? std::as_bytes(buffer.values16()) : std::as_bytes(buffer.values())));
    }
  }
  const std::uint64_t digest = hash64(std::as_bytes(std::span{hashes})) & kMask;
  return digest == 0 ? 1 : digest;  // 0 means "not computed" in the verdict.
}

std::string Zero1Optimizer::describe_plan() const {
  std::vector<ParameterSpec> specs;
  for (const RoutedParameter& parameter : setup_.routing.parameters) {
    specs.push_back(parameter.spec);
  }
  const auto report =
      report_plan(std::move(specs), setup_.options, setup_.world_size, setup_.expert_ranks);
  return report.ok() ? to_text(*report) : report.status().to_string();
}

// --- values from outside the update: initial ones, and the factors of QK-clip ---

Status Zero1Optimizer::set_values(std::size_t index, std::span<const float> values) {
  if (index >= parameters_.size()) {
    return invalid_argument(
        "set_values: index must be below ", parameters_.size(), ", got ", index);
  }
  Parameter& parameter = parameters_[index];
  if (values.size() != parameter.gradient.size()) {
    return invalid_argument(
        "set_values: parameter '",
        parameter.spec.name,
        "' must get ",
        parameter.gradient.size(),
        " elements, got ",
        values.size());
  }
  if (parameter.value16.empty()) {
    std::copy(values.begin(), values.end(), parameter.value.begin());
    return {};
  }
  kernels::narrow(parameter.spec.dtype, values, parameter.value16);
  if (ShardState* shard = shard_of_[index]; shard != nullptr) {
    const std::span<const float> own =
        values.subspan(shard->range.parameter_begin, shard->range.size);
    std::copy(own.begin(), own.end(), shard->master.begin());
  }
  return {};
}

Expected<std::size_t> Zero1Optimizer::checked_rows(const HeadScale& scale) const {
  const auto at = index_of_.find(scale.parameter);
  if (at == index_of_.end()) {
    return not_found("QK-clip: there is no parameter '" + scale.parameter + "'");
  }
  const ParameterSpec& spec = setup_.routing.parameters[at->second].spec;
  if (spec.shape.size() != 1 && spec.shape.size() != 2) {
    return invalid_argument(
        "QK-clip: parameter '" + spec.name + "' must be a matrix [rows, cols] or a bias [rows]");
  }
  if (scale.row_begin < 0 || scale.row_begin > scale.row_end || scale.row_end > spec.shape[0]) {
    return invalid_argument(
        "QK-clip: rows [",
        scale.row_begin,
        ", ",
        scale.row_end,
        ") must be inside parameter '",
        spec.name,
        "', which has ",
        spec.shape[0],
        " rows");
  }
  if (!std::isfinite(scale.factor) || scale.factor <= 0) {
    return invalid_argument(
        "QK-clip: the factor of parameter '",
        spec.name,
        "' must be positive and finite, got ",
        scale.factor);
  }
  return at->second;
}

Status Zero1Optimizer::scale_heads(std::span<const HeadScale> scales) {
  for (const HeadScale& scale : scales) {
    MUSTER_RETURN_IF_ERROR(checked_rows(scale).status());
  }
  for (const HeadScale& scale : scales) {
    const std::size_t index = index_of_.find(scale.parameter)->second;
    ShardState* shard = shard_of_[index];
    if (shard == nullptr) {
      continue;
    }
    const RoutedParameter& parameter = setup_.routing.parameters[index];
    const std::size_t cols = parameter.size / static_cast<std::size_t>(parameter.spec.shape[0]);
    const Shard& range = shard->range;
    const std::size_t begin =
        std::max(static_cast<std::size_t>(scale.row_begin) * cols, range.parameter_begin);
    const std::size_t end = std::min(
        static_cast<std::size_t>(scale.row_end) * cols, range.parameter_begin + range.size);
    if (begin >= end) {
      continue;
    }
    const std::size_t at = begin - range.parameter_begin;
    kernels::scale_elements(
        shard->value.subspan(at, end - begin),
        shard->narrow_copy.empty() ? shard->narrow_copy
                                   : shard->narrow_copy.subspan(at, end - begin),
        shard->narrow_type,
        scale.factor);
  }
  return {};
}

// --- checkpoints ---

GlobalTensor Zero1Optimizer::global_of(std::size_t parameter) const {
  return global_tensor(
      setup_.routing.parameters[parameter], shaped_[parameter], setup_.expert_position.groups);
}

std::vector<TensorPiece> Zero1Optimizer::state() {
  std::vector<TensorPiece> tensors;
  for (Part& part : parts_) {
    for (ShardState& shard : part.shards) {
      if (!shard.range.primary) {
        continue;
      }
      const std::size_t index = shard.range.parameter;
      for (TensorPiece& tensor :
           tensor_pieces(shard, setup_.routing.parameters[index], global_of(index))) {
        tensors.push_back(std::move(tensor));
      }
    }
  }
  return tensors;
}

std::map<std::string, std::string> Zero1Optimizer::state_values() const {
  std::map<std::string, std::string> values;
  values[kAppliedStepsKey] = std::to_string(applied_steps_);
  values[kMomentumFormKey] = to_string(setup_.options.muon.momentum_form);
  values[kMuonMomentumKey] = general(setup_.options.muon.momentum, 17);
  values[kQuantMapKey] = quant_map_text();
  for (const RoutedParameter& parameter : setup_.routing.parameters) {
    values[kRuleKeyPrefix + parameter.spec.name] = to_string(parameter.route.rule);
  }
  return values;
}

Status Zero1Optimizer::load_state(StateSource& source) {
  StateLoader loader{source, setup_.options};
  MUSTER_RETURN_IF_ERROR(loader.check_values());
  for (const Part& part : parts_) {
    for (const PlacedParameter& placed : part.buffer->plan().placed) {
      MUSTER_RETURN_IF_ERROR(
          loader.check(setup_.routing.parameters[placed.parameter], global_of(placed.parameter)));
    }
  }
  MUSTER_RETURN_IF_ERROR(loader.check_leftovers());
  for (const bool commit : {false, true}) {
    for (Part& part : parts_) {
      for (ShardState& shard : part.shards) {
        MUSTER_RETURN_IF_ERROR(
            loader.read(shard, setup_.routing.parameters[shard.range.parameter], commit));
      }
    }
  }
  applied_steps_ = loader.applied_steps().value_or(applied_steps_);
  return {};
}

}  // namespace muster::optimizer
