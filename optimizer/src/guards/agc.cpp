// SPDX-License-Identifier: Apache-2.0
#include "optimizer/src/guards/agc.h"

#include <muster/kernels/statistics.h>

#include <algorithm>
#include <cmath>

namespace muster::optimizer {
namespace {

bool clips_group(const AgcOptions& options, const std::string& group) {
  return options.groups.empty() ||
         std::find(options.groups.begin(), options.groups.end(), group) != options.groups.end();
}

}  // namespace

std::size_t agc_unit(const RoutedParameter& parameter) {
  return parameter.spec.shape.size() < 2 ? parameter.size
                                         : static_cast<std::size_t>(parameter.spec.shape.back());
}

std::vector<std::pair<std::size_t, std::size_t>> agc_cut_rows(
    const BufferPlan& plan, const Routing& routing, const AgcOptions& options) {
  std::vector<std::pair<std::size_t, std::size_t>> rows;
  for (const std::vector<Shard>& shards : plan.shards) {
    for (const Shard& shard : shards) {
      const RoutedParameter& parameter = routing.parameters[shard.parameter];
      const std::size_t unit = agc_unit(parameter);
      if (shard.parameter_begin % unit != 0 && clips_group(options, parameter.route.group)) {
        rows.emplace_back(shard.parameter, shard.parameter_begin / unit);
      }
    }
  }
  std::sort(rows.begin(), rows.end());
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  return rows;
}

AdaptiveClipper::AdaptiveClipper(
    const Routing& routing, const AgcOptions& options, const BufferPlan& plan)
    : routing_(&routing), options_(options) {
  for (const auto& row : agc_cut_rows(plan, routing, options)) {
    cut_rows_.emplace(row, cut_rows_.size());
  }
}

bool AdaptiveClipper::clips(const RoutedParameter& parameter) const {
  return clips_group(options_, parameter.route.group);
}

template <typename Row>
void AdaptiveClipper::for_each_row(const ShardState& shard, const Row& row) const {
  const Shard& range = shard.range;
  const std::size_t unit = agc_unit(routing_->parameters[range.parameter]);
  std::size_t begin = 0;
  while (begin < range.size) {
    const std::size_t at = range.parameter_begin + begin;
    const std::size_t count = std::min(range.size - begin, unit - at % unit);
    const auto cut = cut_rows_.find({range.parameter, at / unit});
    row(cut == cut_rows_.end() ? cut_rows_.size() : cut->second, begin, count);
    begin += count;
  }
}

AdaptiveClipper::Norms AdaptiveClipper::norms_of(
    const ShardState& shard, std::size_t begin, std::size_t count) {
  return {
      kernels::norm_and_nonfinite(shard.gradient.subspan(begin, count)).squared_sum,
      kernels::norm_and_nonfinite(shard.value.subspan(begin, count)).squared_sum};
}

void AdaptiveClipper::scale_row(
    const ShardState& shard,
    std::size_t begin,
    std::size_t count,
    const Norms& norms,
    double scale) const {
  const double gradient = std::sqrt(norms.gradient) * std::abs(scale);
  const double bound = options_.factor * std::max(std::sqrt(norms.weight), options_.epsilon);
  if (gradient <= bound) {
    return;
  }
  const auto factor = static_cast<float>(bound / gradient);
  for (float& value : shard.gradient.subspan(begin, count)) {
    value *= factor;
  }
}

Status AdaptiveClipper::clip(
    std::span<ShardState> shards,
    std::span<const double> scale,
    comm::Communicator& holders,
    Deadline deadline) {
  const std::size_t cuts = cut_rows_.size();
  packed_.assign(2 * cuts, 0.0);
  for (const ShardState& shard : shards) {
    const RoutedParameter& parameter = routing_->parameters[shard.range.parameter];
    if (!clips(parameter)) {
      continue;
    }
    const double factor = scale[static_cast<std::size_t>(parameter.group_index)];
    for_each_row(shard, [&](std::size_t cut, std::size_t begin, std::size_t count) {
      const Norms norms = norms_of(shard, begin, count);
      if (cut == cuts) {
        scale_row(shard, begin, count, norms, factor);
      } else {
        packed_[2 * cut] += norms.gradient;
        packed_[2 * cut + 1] += norms.weight;
      }
    });
  }
  if (cuts == 0) {
    return {};
  }
  MUSTER_RETURN_IF_ERROR(holders.all_reduce(std::span{packed_}, comm::ReduceOp::kSum, deadline)
                             .context("adding up the row norms of adaptive clipping"));
  for (const ShardState& shard : shards) {
    const RoutedParameter& parameter = routing_->parameters[shard.range.parameter];
    if (!clips(parameter)) {
      continue;
    }
    const double factor = scale[static_cast<std::size_t>(parameter.group_index)];
    for_each_row(shard, [&](std::size_t cut, std::size_t begin, std::size_t count) {
      if (cut != cuts) {
        scale_row(shard, begin, count, {packed_[2 * cut], packed_[2 * cut + 1]}, factor);
      }
    });
  }
  return {};
}

double AdaptiveClipper::bytes(int ranks) const {
  const auto size = static_cast<double>(2 * cut_rows_.size() * sizeof(double));
  return 2.0 * (ranks - 1) / ranks * size;
}

}  // namespace muster::optimizer
