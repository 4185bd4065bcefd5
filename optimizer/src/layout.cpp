#include "src/layout.h"

#include "src/bin_packing.h"

#include <muster/kernels/optimizer_kernels.h>

#include <algorithm>
#include <numeric>
#include <sstream>

namespace muster::optimizer {
namespace {

std::size_t aligned(std::size_t floats) {
  return (floats + kAlignmentFloats - 1) / kAlignmentFloats * kAlignmentFloats;
}

std::vector<std::size_t> select(const Routing& routing, Placement placement, Rule rule) {
  std::vector<std::size_t> selected;
  for (std::size_t i = 0; i < routing.parameters.size(); ++i) {
    const RoutedParameter& parameter = routing.parameters[i];
    if (parameter.spec.placement == placement && parameter.route.rule == rule) {
      selected.push_back(i);
    }
  }
  return selected;
}

void plan_flat(RegionPlan& plan, const Routing& routing, std::span<const std::size_t> selected) {
  for (const std::size_t index : selected) {
    plan.placed.push_back({index, plan.size});
    plan.size += aligned(routing.parameters[index].size);
  }
  const auto ranks = static_cast<std::size_t>(plan.ranks);
  const std::size_t shard = aligned((plan.size + ranks - 1) / ranks);
  plan.size = shard * ranks;
  plan.segments.push_back({0, std::vector<std::size_t>(ranks, shard)});
}

// Matrices of each selected parameter per rank: [selected][ranks].
using Ownership = std::vector<std::vector<std::size_t>>;

struct Items {
  std::vector<double> costs;          // one per item
  std::vector<std::size_t> position;  // which selected parameter the item belongs to
  std::vector<std::size_t> matrices;  // how many matrices the item is
};

Items make_items(
    const Routing& routing, std::span<const std::size_t> selected, int steps, bool whole) {
  Items items;
  for (std::size_t position = 0; position < selected.size(); ++position) {
    const RoutedParameter& parameter = routing.parameters[selected[position]];
    const double cost = kernels::newton_schulz_flops(parameter.rows, parameter.cols, steps);
    const std::size_t per_item = whole ? parameter.matrices : 1;
    for (std::size_t done = 0; done < parameter.matrices; done += per_item) {
      items.costs.push_back(cost * static_cast<double>(per_item));
      items.position.push_back(position);
      items.matrices.push_back(per_item);
    }
  }
  return items;
}

Ownership assign(RegionPlan& plan, const Items& items, std::size_t parameters) {
  const auto owner = pack_longest_first(items.costs, plan.ranks);
  plan.newton_schulz_flops = bin_loads(items.costs, owner, plan.ranks);
  Ownership ownership(
      parameters, std::vector<std::size_t>(static_cast<std::size_t>(plan.ranks), 0));
  for (std::size_t item = 0; item < owner.size(); ++item) {
    ownership[items.position[item]][static_cast<std::size_t>(owner[item])] += items.matrices[item];
  }
  return ownership;
}

Ownership choose_owners(
    RegionPlan& plan, const Routing& routing, std::span<const std::size_t> selected, int steps) {
  const Items single = make_items(routing, selected, steps, false);
  const double total = std::accumulate(single.costs.begin(), single.costs.end(), 0.0);
  const double largest = *std::max_element(single.costs.begin(), single.costs.end());
  const double lower_bound = std::max(total / plan.ranks, largest);
  Ownership whole = assign(plan, make_items(routing, selected, steps, true), selected.size());
  const auto& loads = plan.newton_schulz_flops;
  if (*std::max_element(loads.begin(), loads.end()) <= kWholeStackSlack * lower_bound) {
    return whole;
  }
  return assign(plan, single, selected.size());
}

void plan_matrices(
    RegionPlan& plan, const Routing& routing, std::span<const std::size_t> selected, int steps) {
  const Ownership ownership = choose_owners(plan, routing, selected, steps);
  const auto ranks = static_cast<std::size_t>(plan.ranks);
  Segment whole{0, std::vector<std::size_t>(ranks, 0)};
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    for (std::size_t position = 0; position < selected.size(); ++position) {
      const RoutedParameter& parameter = routing.parameters[selected[position]];
      if (ownership[position][rank] == parameter.matrices) {
        plan.placed.push_back({selected[position], plan.size});
        plan.size += aligned(parameter.size);
        whole.counts[rank] += aligned(parameter.size);
      }
    }
  }
  plan.segments.push_back(std::move(whole));
  for (std::size_t position = 0; position < selected.size(); ++position) {
    const RoutedParameter& parameter = routing.parameters[selected[position]];
    const auto& owned = ownership[position];
    if (std::find(owned.begin(), owned.end(), parameter.matrices) != owned.end()) {
      continue;
    }
    // The matrices of a stack cost the same, so any of them may be anyone's: rank order it is.
    Segment stack{plan.size, owned};
    for (std::size_t& count : stack.counts) {
      count *= parameter.size / parameter.matrices;
    }
    plan.placed.push_back({selected[position], plan.size});
    plan.segments.push_back(std::move(stack));
    plan.size += aligned(parameter.size);
  }
}

}  // namespace

RegionPlan plan_region(
    const Routing& routing, Placement placement, Rule rule, int ranks, int newton_schulz_steps) {
  RegionPlan plan;
  plan.placement = placement;
  plan.rule = rule;
  plan.ranks = ranks;
  plan.newton_schulz_flops.assign(static_cast<std::size_t>(ranks), 0.0);
  const std::vector<std::size_t> selected = select(routing, placement, rule);
  if (selected.empty()) {
    return plan;
  }
  if (rule == Rule::kMuon) {
    plan_matrices(plan, routing, selected, newton_schulz_steps);
  } else {
    plan_flat(plan, routing, selected);
  }
  return plan;
}

std::vector<Piece> pieces_of(const RegionPlan& plan, const Routing& routing, int rank) {
  std::vector<Piece> pieces;
  for (const Segment& segment : plan.segments) {
    const auto mine = segment.counts.begin() + rank;
    const std::size_t begin = std::accumulate(segment.counts.begin(), mine, segment.begin);
    const std::size_t end = begin + *mine;
    for (const PlacedParameter& placed : plan.placed) {
      const std::size_t size = routing.parameters[placed.parameter].size;
      const std::size_t first = std::max(begin, placed.begin);
      const std::size_t last = std::min(end, placed.begin + size);
      if (first < last) {
        pieces.push_back({placed.parameter, first, first - placed.begin, last - first});
      }
    }
  }
  return pieces;
}

std::string describe(const RegionPlan& plan) {
  std::ostringstream text;
  text << (plan.placement == Placement::kExpert ? "expert" : "replicated")
       << (plan.rule == Rule::kMuon ? " muon" : " adamw") << ": " << plan.placed.size()
       << " parameters, " << plan.size * sizeof(float) << " bytes, " << plan.segments.size()
       << " collectives each way, " << plan.ranks << " ranks\n";
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(plan.ranks); ++rank) {
    std::size_t floats = 0;
    for (const Segment& segment : plan.segments) {
      floats += segment.counts[rank];
    }
    text << "  rank " << rank << ": " << floats * sizeof(float) << " bytes";
    if (plan.rule == Rule::kMuon) {
      text << ", " << plan.newton_schulz_flops[rank] << " Newton-Schulz flops";
    }
    text << '\n';
  }
  return text.str();
}

}  // namespace muster::optimizer
