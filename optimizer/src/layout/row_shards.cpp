// SPDX-License-Identifier: Apache-2.0
// Shards along dimension 0 (the storage of FSDP): rank r has rows [r s, (r + 1) s) of a matrix, s =
// ceil(rows / ranks), and matrices of a stack likewise; the last ranks may have fewer or none.
// Whole matrices are assembled at owners dealt out by bin packing.
//
// The shards of one parameter are neighbours in memory, those of two parameters are not, so each
// parameter is a separate bucket, whatever bucket_bytes is.
#include "optimizer/src/layout/bin_packing.h"
#include "optimizer/src/layout/build.h"

#include <algorithm>
#include <numeric>

namespace muster::optimizer {
namespace {

// Elements of rank 0's shard. Only 8-bit blocks restrict where a matrix may be cut.
std::size_t shard_size(const RoutedParameter& parameter, const LayoutInput& input) {
  const auto ranks = static_cast<std::size_t>(input.ranks);
  const bool stack = parameter.spec.shape.size() == 3;
  const auto rows = static_cast<std::size_t>(parameter.spec.shape[0]);
  const std::size_t row = parameter.size / rows;
  std::size_t share = (rows + ranks - 1) / ranks;
  if (!stack && parameter.state_type == StateType::kInt8Block) {
    const auto granularity = static_cast<std::size_t>(input.options.cut_granularity);
    const std::size_t step = granularity / std::gcd(granularity, row);
    share = (share + step - 1) / step * step;
  }
  return share * row;
}

Bucket place(BufferPlan& plan, const LayoutInput& input, std::size_t index, std::size_t shard) {
  const std::size_t size = input.at(index).size;
  Bucket bucket{plan.size, {}, aligned(size), {index}};
  plan.placed.push_back({index, plan.size});
  const auto stored = static_cast<int>((size + shard - 1) / shard);
  for (int rank = 0; rank < stored; ++rank) {
    const std::size_t begin = static_cast<std::size_t>(rank) * shard;
    const std::size_t count = std::min(shard, size - begin);
    input.visit(rank, {index, plan.size + begin, begin, count});
    if (input.detailed) {
      bucket.counts.push_back(count);
    }
  }
  if (input.detailed) {
    bucket.counts.back() += bucket.size - size;
    bucket.counts.resize(static_cast<std::size_t>(plan.ranks), 0);
  }
  plan.size += bucket.size;
  return bucket;
}

void add_tasks(
    BufferPlan& plan, const RoutedParameter& parameter, std::size_t index, std::size_t shard) {
  for (std::size_t matrix = 0; matrix < parameter.matrices; ++matrix) {
    MatrixTask task{index, matrix * parameter.unit, parameter.unit, {}, {}, false};
    for (std::size_t begin = task.begin; begin < task.begin + task.size;) {
      const std::size_t rank = begin / shard;
      const std::size_t stop = std::min((rank + 1) * shard, task.begin + task.size);
      task.fragments.push_back({static_cast<int>(rank), begin - task.begin, stop - begin});
      begin = stop;
    }
    plan.tasks.push_back(std::move(task));
  }
}

// Matrices stored by one rank are computed there; the others go to the least loaded rank.
void choose_owners(BufferPlan& plan, const LayoutInput& input) {
  std::vector<double> loads(static_cast<std::size_t>(plan.ranks), 0.0);
  std::vector<std::size_t> cut;
  std::vector<double> costs;
  for (std::size_t index = 0; index < plan.tasks.size(); ++index) {
    MatrixTask& task = plan.tasks[index];
    if (task.fragments.size() == 1) {
      const int rank = task.fragments.front().rank;
      task.computing = {rank};
      loads[static_cast<std::size_t>(rank)] += input.flops[task.parameter];
    } else {
      cut.push_back(index);
      costs.push_back(input.flops[task.parameter]);
    }
  }
  const std::vector<int> owners = pack_longest_first(costs, plan.ranks, loads);
  for (std::size_t i = 0; i < cut.size(); ++i) {
    plan.tasks[cut[i]].computing = {owners[i]};
  }
}

}  // namespace

void plan_row_shards(BufferPlan& plan, const LayoutInput& input) {
  for (const std::size_t index : input.selected) {
    const RoutedParameter& parameter = input.at(index);
    const std::size_t shard = shard_size(parameter, input);
    plan.buckets.push_back(place(plan, input, index, shard));
    add_tasks(plan, parameter, index, shard);
  }
  std::reverse(plan.buckets.begin(), plan.buckets.end());
  choose_owners(plan, input);
}

}  // namespace muster::optimizer
