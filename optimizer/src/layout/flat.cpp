// SPDX-License-Identifier: Apache-2.0
// One flat buffer of matrices in equal shards (classic ZeRO-1). There is one set of cuts for the
// whole buffer, at most ranks - 1 of them, and the buckets are ranges of it: cutting every bucket
// evenly would cut every matrix instead.
#include "optimizer/src/layout/build.h"

#include <algorithm>

namespace muster::optimizer {
namespace {

// Every matrix with the ranks that store parts of it.
void add_tasks(BufferPlan& plan, const LayoutInput& input, std::span<const std::size_t> cuts) {
  std::size_t rank = 0;
  for (const PlacedParameter& placed : plan.placed) {
    const RoutedParameter& parameter = input.at(placed.parameter);
    for (std::size_t matrix = 0; matrix < parameter.matrices; ++matrix) {
      MatrixTask task{placed.parameter, matrix * parameter.unit, parameter.unit, {}, {}, false};
      const std::size_t start = placed.begin + task.begin;
      std::size_t begin = start;
      while (begin < start + task.size) {
        while (cuts[rank + 1] <= begin) {
          ++rank;
        }
        const std::size_t stop = std::min(start + task.size, cuts[rank + 1]);
        task.fragments.push_back({static_cast<int>(rank), begin - start, stop - begin});
        begin = stop;
      }
      plan.tasks.push_back(std::move(task));
    }
  }
}

void compute_everywhere(BufferPlan& plan) {
  for (MatrixTask& task : plan.tasks) {
    for (const Fragment& fragment : task.fragments) {
      task.computing.push_back(fragment.rank);
    }
  }
}

// A cut matrix goes to the rank with most of it; among those to the least loaded, then the lowest.
void compute_at_owners(BufferPlan& plan, const LayoutInput& input) {
  std::vector<double> loads(static_cast<std::size_t>(plan.ranks), 0.0);
  const auto give = [&](MatrixTask& task, int rank) {
    task.computing = {rank};
    loads[static_cast<std::size_t>(rank)] += input.flops[task.parameter];
  };
  for (MatrixTask& task : plan.tasks) {
    if (task.fragments.size() == 1) {
      give(task, task.fragments.front().rank);
    }
  }
  for (MatrixTask& task : plan.tasks) {
    if (task.fragments.size() > 1) {
      const auto best = std::min_element(
          task.fragments.begin(), task.fragments.end(), [&](const Fragment& a, const Fragment& b) {
            return a.size != b.size ? a.size > b.size
                                    : loads[static_cast<std::size_t>(a.rank)] <
                                          loads[static_cast<std::size_t>(b.rank)];
          });
      give(task, best->rank);
    }
  }
}

}  // namespace

void plan_flat(BufferPlan& plan, const LayoutInput& input) {
  place_in_order(plan, input);
  const PlacedRange all{0, plan.placed.size(), 0, plan.size};
  const std::vector<std::size_t> cuts = even_cuts(plan, input, all);
  visit_cut_shards(plan, input, all, cuts);
  for (const PlacedRange& range : bucket_ranges(plan, input)) {
    plan.buckets.push_back(cut_bucket(plan, input, range, cuts));
  }
  add_tasks(plan, input, cuts);
  if (plan.layout == Layout::kFlatRedundant) {
    compute_everywhere(plan);
  } else {
    compute_at_owners(plan, input);
  }
}

}  // namespace muster::optimizer
