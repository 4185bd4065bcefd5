// SPDX-License-Identifier: Apache-2.0
// Whole matrices, dealt out by bin packing on Newton-Schulz cost. In memory every bucket is ordered
// by owner, so that one reduce-scatter brings every matrix to the rank that orthogonalises it.
#include "optimizer/src/layout/bin_packing.h"
#include "optimizer/src/layout/build.h"

#include <algorithm>
#include <map>
#include <numeric>

namespace muster::optimizer {
namespace {

// Consecutive matrices of a stack on one rank.
struct Share {
  int rank{0};
  std::size_t matrices{0};
};

// [parameters of the routing] shares in rank order; empty where not selected.
using Ownership = std::vector<std::vector<Share>>;

struct Items {
  std::vector<double> costs;           // one per item
  std::vector<std::size_t> parameter;  // that the item belongs to
  std::vector<std::size_t> matrices;   // how many matrices the item is
};

Items make_items(const LayoutInput& input, bool whole) {
  Items items;
  for (const std::size_t index : input.selected) {
    const std::size_t matrices = input.at(index).matrices;
    const std::size_t per_item = whole ? matrices : 1;
    for (std::size_t done = 0; done < matrices; done += per_item) {
      items.costs.push_back(input.flops[index] * static_cast<double>(per_item));
      items.parameter.push_back(index);
      items.matrices.push_back(per_item);
    }
  }
  return items;
}

// The matrices of a stack cost the same and are interchangeable, so shares are in rank order.
Ownership collect(const LayoutInput& input, const Items& items, std::span<const int> owners) {
  std::vector<std::map<int, std::size_t>> counts(input.routing.parameters.size());
  for (std::size_t item = 0; item < owners.size(); ++item) {
    counts[items.parameter[item]][owners[item]] += items.matrices[item];
  }
  Ownership ownership(counts.size());
  for (const std::size_t index : input.selected) {
    for (const auto& [rank, matrices] : counts[index]) {
      ownership[index].push_back({rank, matrices});
    }
  }
  return ownership;
}

Ownership choose_owners(const LayoutInput& input) {
  const Items single = make_items(input, false);
  const double total = std::accumulate(single.costs.begin(), single.costs.end(), 0.0);
  const double largest = *std::max_element(single.costs.begin(), single.costs.end());
  const double lower_bound = std::max(total / input.ranks, largest);
  const Items whole = make_items(input, true);
  const std::vector<int> whole_owners = pack_longest_first(whole.costs, input.ranks);
  const std::vector<double> loads = bin_loads(whole.costs, whole_owners, input.ranks);
  if (*std::max_element(loads.begin(), loads.end()) <= kWholeStackSlack * lower_bound) {
    return collect(input, whole, whole_owners);
  }
  return collect(input, single, pack_longest_first(single.costs, input.ranks));
}

// Parameters covered by one reduce-scatter: whole ones, or one stack of several owners.
struct Group {
  std::vector<std::size_t> parameters;
};

// In launch order: by the parameter whose gradient is complete last, its lowest.
std::vector<Group> make_groups(const LayoutInput& input, const Ownership& ownership) {
  std::vector<std::size_t> whole;
  std::vector<Group> groups;
  for (const std::size_t index : input.selected) {
    if (ownership[index].size() == 1) {
      whole.push_back(index);
    } else {
      groups.push_back({{index}});
    }
  }
  for (auto& bucket : make_buckets(input, whole)) {
    groups.push_back({std::move(bucket)});
  }
  std::sort(groups.begin(), groups.end(), [](const Group& a, const Group& b) {
    return a.parameters.front() > b.parameters.front();
  });
  for (Group& group : groups) {
    std::stable_sort(
        group.parameters.begin(), group.parameters.end(), [&](std::size_t a, std::size_t b) {
          return ownership[a].front().rank < ownership[b].front().rank;
        });
  }
  return groups;
}

// One parameter's memory, shards and tasks.
void place(
    BufferPlan& plan,
    const LayoutInput& input,
    std::size_t index,
    std::span<const Share> shares,
    Bucket& bucket) {
  const RoutedParameter& parameter = input.at(index);
  plan.placed.push_back({index, plan.size});
  bucket.parameters.push_back(index);
  std::size_t matrix = 0;
  for (const Share& share : shares) {
    const std::size_t begin = matrix * parameter.unit;
    const std::size_t size = share.matrices * parameter.unit;
    input.visit(share.rank, {index, plan.size + begin, begin, size});
    if (input.detailed) {
      bucket.counts[static_cast<std::size_t>(share.rank)] += size;
    }
    for (; matrix * parameter.unit < begin + size; ++matrix) {
      plan.tasks.push_back(
          {index,
           matrix * parameter.unit,
           parameter.unit,
           {{share.rank, 0, parameter.unit}},
           {share.rank},
           false});
    }
  }
  if (input.detailed) {
    // The padding behind it belongs to its last owner, whose part it follows.
    bucket.counts[static_cast<std::size_t>(shares.back().rank)] +=
        aligned(parameter.size) - parameter.size;
  }
  plan.size += aligned(parameter.size);
}

}  // namespace

void plan_whole(BufferPlan& plan, const LayoutInput& input) {
  const Ownership ownership = choose_owners(input);
  const std::vector<Group> groups = make_groups(input, ownership);
  // Memory runs against the launch order, so that it follows the specs as in the other layouts.
  for (auto group = groups.rbegin(); group != groups.rend(); ++group) {
    Bucket bucket;
    bucket.begin = plan.size;
    if (input.detailed) {
      bucket.counts.assign(static_cast<std::size_t>(plan.ranks), 0);
    }
    for (const std::size_t index : group->parameters) {
      place(plan, input, index, ownership[index], bucket);
    }
    bucket.size = plan.size - bucket.begin;
    plan.buckets.push_back(std::move(bucket));
  }
  std::reverse(plan.buckets.begin(), plan.buckets.end());
}

}  // namespace muster::optimizer
