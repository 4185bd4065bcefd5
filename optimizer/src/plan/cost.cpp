// SPDX-License-Identifier: Apache-2.0
#include "optimizer/src/plan/cost.h"

#include "optimizer/src/guards/agc.h"
#include "optimizer/src/layout/build.h"

#include <algorithm>
#include <numeric>

namespace muster::optimizer {
namespace {

constexpr double kGradientBytes = sizeof(float);
constexpr double kMasterBytes = sizeof(float);
constexpr double kExchangeBytes = sizeof(float);

int states_of(Rule rule) {
  switch (rule) {
    case Rule::kAdamW:
    case Rule::kAdam:
      return 2;
    case Rule::kMuon:
    case Rule::kMomentum:
    case Rule::kRmsProp:
      return 1;
    case Rule::kSgd:
      break;
  }
  return 0;
}

// 8-bit blocks restart with every unit, so a shard that spans units has a short block in each.
std::size_t quant_blocks(const RoutedParameter& parameter, const Shard& shard) {
  constexpr auto kBlock = static_cast<std::size_t>(kernels::kQuantBlock);
  const auto blocks_in = [&](std::size_t elements) { return (elements + kBlock - 1) / kBlock; };
  const std::size_t first = shard.parameter_begin % parameter.unit;
  const std::size_t head = std::min(shard.size, parameter.unit - first);
  const std::size_t rest = shard.size - head;
  return blocks_in(head) + rest / parameter.unit * blocks_in(parameter.unit) +
         blocks_in(rest % parameter.unit);
}

std::string name_of(const BufferKey& key) {
  return concat(
      key.placement == Placement::kExpert ? "expert " : "replicated ",
      key.matrices ? "matrices " : "elementwise ",
      short_name(key.dtype));
}

// Costs that are the same on every rank of the region.
RankCost common_cost(const BufferPlan& plan) {
  const auto size = static_cast<double>(plan.size);
  const auto bytes = static_cast<double>(size_bytes(plan.key.dtype));
  const double rho = 1.0 - 1.0 / plan.ranks;
  RankCost cost;
  cost.parameter_bytes = bytes * size;
  cost.gradient_bytes = kGradientBytes * size;
  if (plan.layout == Layout::kReplicated) {
    cost.traffic.reduce_scatter = 2 * rho * kGradientBytes * size;
  } else {
    cost.traffic.reduce_scatter = rho * kGradientBytes * size;
    cost.traffic.all_gather = rho * bytes * size;
  }
  return cost;
}

std::int64_t collectives_of(const BufferPlan& plan) {
  if (plan.ranks == 1) {
    return 0;
  }
  const auto buckets = static_cast<std::int64_t>(plan.buckets.size());
  std::int64_t count = plan.layout == Layout::kReplicated ? buckets : 2 * buckets;
  std::size_t begin = 0;
  for (const std::size_t end : plan.round_ends) {
    const bool moves = std::any_of(
        plan.tasks.begin() + static_cast<std::ptrdiff_t>(begin),
        plan.tasks.begin() + static_cast<std::ptrdiff_t>(end),
        [](const MatrixTask& task) { return task.moves; });
    // Where every holder computes, nothing has to come back.
    count += moves ? (plan.layout == Layout::kFlatRedundant ? 1 : 2) : 0;
    begin = end;
  }
  return count;
}

// Newton-Schulz flops of the region's matrices, each once.
double flops_once(const BufferPlan& plan, const Routing& routing, const MuonOptions& muon) {
  std::vector<std::size_t> selected;
  for (const PlacedParameter& placed : plan.placed) {
    selected.push_back(placed.parameter);
  }
  const std::vector<double> of_matrix = flops_of_matrices(routing, selected, muon);
  double flops = 0;
  for (const PlacedParameter& placed : plan.placed) {
    flops += of_matrix[placed.parameter] *
             static_cast<double>(routing.parameters[placed.parameter].matrices);
  }
  return flops;
}

// Rows that adaptive clipping must add up over ranks; shards of a parameter come in ascending
// order.
class CutRows {
 public:
  CutRows(const Routing& routing, const OptimizerOptions& options)
      : routing_(&routing), options_(&options) {}

  void add(const Shard& shard) {
    const auto& agc = options_->clipping.agc;
    const RoutedParameter& parameter = routing_->parameters[shard.parameter];
    const std::size_t unit = agc_unit(parameter);
    if (!agc || shard.parameter_begin % unit == 0) {
      return;
    }
    const bool clipped = agc->groups.empty() ||
                         std::find(agc->groups.begin(), agc->groups.end(), parameter.route.group) !=
                             agc->groups.end();
    const std::pair row{shard.parameter, shard.parameter_begin / unit};
    count_ += clipped && row != last_ ? 1 : 0;
    last_ = row;
  }

  [[nodiscard]] std::int64_t count() const { return count_; }

 private:
  const Routing* routing_;
  const OptimizerOptions* options_;
  std::int64_t count_{0};
  std::pair<std::size_t, std::size_t> last_{0, 0};  // row 0 is never cut at its start
};

// All-reduced: the squared norms of gradient and weight of every cut row, in double.
void add_row_norms(RegionCost& region, std::int64_t rows) {
  if (region.ranks == 1 || rows == 0) {
    return;
  }
  region.collectives += 1;
  for (RankCost& cost : region.cost) {
    cost.traffic.agc =
        2 * (1.0 - 1.0 / region.ranks) * 2 * sizeof(double) * static_cast<double>(rows);
  }
}

void describe(RegionCost& region, const BufferPlan& plan, const Routing& routing) {
  region.name = name_of(plan.key);
  region.ranks = plan.ranks;
  for (const PlacedParameter& placed : plan.placed) {
    const RoutedParameter& parameter = routing.parameters[placed.parameter];
    region.parameters += 1;
    region.elements += static_cast<std::int64_t>(parameter.size);
    region.matrices += static_cast<std::int64_t>(parameter.matrices);
  }
  region.padding_elements = static_cast<std::int64_t>(plan.size) - region.elements;
  region.cut_matrices =
      std::count_if(plan.tasks.begin(), plan.tasks.end(), [](const MatrixTask& task) {
        return task.fragments.size() > 1;
      });
  region.collectives = collectives_of(plan);
}

// Every rank does what rank 0 does.
void copy_to_all(RegionCost& region, double flops) {
  region.cost.front().newton_schulz_flops = flops;
  std::fill(region.cost.begin() + 1, region.cost.end(), region.cost.front());
  region.repeated_newton_schulz = region.ranks;
}

void add_matrix_work(
    RegionCost& region,
    const BufferPlan& plan,
    const Routing& routing,
    const OptimizerOptions& options,
    double flops) {
  const std::vector<double> sent = exchange_bytes(plan);
  const std::vector<double> scratch = scratch_bytes(plan, routing, options);
  for (std::size_t rank = 0; rank < region.cost.size(); ++rank) {
    region.cost[rank].newton_schulz_flops = plan.newton_schulz_flops[rank];
    region.cost[rank].traffic.exchange = sent[rank];
    region.cost[rank].scratch_bytes = scratch[rank];
  }
  region.repeated_newton_schulz =
      std::accumulate(plan.newton_schulz_flops.begin(), plan.newton_schulz_flops.end(), 0.0) /
      flops;
}

}  // namespace

double state_bytes(const RoutedParameter& parameter, const Shard& shard) {
  const auto elements = static_cast<double>(shard.size);
  double bytes = 0;
  switch (parameter.state_type) {
    case StateType::kFloat32:
      bytes = sizeof(float) * elements;
      break;
    case StateType::kBFloat16:
      bytes = sizeof(std::uint16_t) * elements;
      break;
    case StateType::kInt8Block:
      bytes = elements + sizeof(float) * static_cast<double>(quant_blocks(parameter, shard));
      break;
  }
  return states_of(parameter.route.rule) * bytes;
}

std::vector<double> exchange_bytes(const BufferPlan& plan) {
  std::vector<double> sent(static_cast<std::size_t>(plan.ranks), 0.0);
  for (const MatrixTask& task : plan.tasks) {
    if (!task.moves) {
      continue;
    }
    for (const Fragment& fragment : task.fragments) {
      const bool computes =
          std::binary_search(task.computing.begin(), task.computing.end(), fragment.rank);
      const auto others = static_cast<double>(task.computing.size() - (computes ? 1 : 0));
      const double bytes = kExchangeBytes * static_cast<double>(fragment.size);
      sent[static_cast<std::size_t>(fragment.rank)] += bytes * others;
      if (!computes) {
        // The lowest computing rank sends the result back; there is no other in such a layout.
        sent[static_cast<std::size_t>(task.computing.front())] += bytes;
      }
    }
  }
  return sent;
}

RegionCost cost_region(
    const Routing& routing, const OptimizerOptions& options, const BufferKey& key, int ranks) {
  RegionCost region;
  region.cost.resize(static_cast<std::size_t>(ranks));
  const bool narrow = key.dtype != DType::kFloat32;
  CutRows cut_rows{routing, options};
  const ShardVisitor add_piece = [&](int rank, const Shard& shard) {
    cut_rows.add(shard);
    RankCost& cost = region.cost[static_cast<std::size_t>(rank)];
    cost.state_bytes += state_bytes(routing.parameters[shard.parameter], shard);
    cost.master_bytes += narrow ? kMasterBytes * static_cast<double>(shard.size) : 0;
  };
  const BufferPlan plan = build_buffer(routing, options, key, ranks, false, add_piece);
  describe(region, plan, routing);
  const RankCost common = common_cost(plan);
  for (RankCost& cost : region.cost) {
    cost.parameter_bytes = common.parameter_bytes;
    cost.gradient_bytes = common.gradient_bytes;
    cost.traffic = common.traffic;
  }
  const double flops = key.matrices ? flops_once(plan, routing, options.muon) : 0;
  if (plan.layout == Layout::kReplicated) {
    if (key.matrices) {
      region.cost.front().scratch_bytes = replicated_scratch_bytes(plan, routing, options);
    }
    copy_to_all(region, flops);
  } else if (key.matrices) {
    add_matrix_work(region, plan, routing, options, flops);
  }
  add_row_norms(region, cut_rows.count());
  return region;
}

}  // namespace muster::optimizer
