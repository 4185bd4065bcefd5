// SPDX-License-Identifier: Apache-2.0
// Memory that the update of a region needs beside what is stored.
#include "optimizer/src/plan/cost.h"

#include <algorithm>
#include <utility>

namespace muster::optimizer {
namespace {

// 2 copies of the matrix and 4 of its small side squared (docs/concepts/kernels.md).
double workspace_elements(const RoutedParameter& parameter) {
  double largest = 0;
  for (const MatrixBlock& block : parameter.blocks) {
    const auto m = static_cast<double>(std::min(block.rows, parameter.cols));
    const auto n = static_cast<double>(std::max(block.rows, parameter.cols));
    const bool gathered = block.runs.size() > 1;  // moved together first
    largest = std::max(largest, 2 * m * n + 4 * m * m + (gathered ? m * n : 0));
  }
  return largest;
}

// Elements of the buffers of one rank.
struct Buffers {
  double work{0};  // matrices in memory at the same time
  double directions_out{0};
  double directions_in{0};
  double results_out{0};
  double results_in{0};

  [[nodiscard]] double all() const {
    return work + std::max(directions_out, results_out) + std::max(directions_in, results_in);
  }
};

void add_moving(std::vector<Buffers>& ranks, const MatrixTask& task) {
  const auto size = static_cast<double>(task.size);
  for (const int rank : task.computing) {
    ranks[static_cast<std::size_t>(rank)].work += size;
    ranks[static_cast<std::size_t>(rank)].directions_in += size;
  }
  for (const Fragment& fragment : task.fragments) {
    Buffers& rank = ranks[static_cast<std::size_t>(fragment.rank)];
    const auto part = static_cast<double>(fragment.size);
    const auto computing = static_cast<double>(task.computing.size());
    if (std::binary_search(task.computing.begin(), task.computing.end(), fragment.rank)) {
      rank.directions_in -= part;
      rank.directions_out += part * (computing - 1);
    } else {
      rank.directions_out += part * computing;
      rank.results_in += part;
      ranks[static_cast<std::size_t>(task.computing.front())].results_out += part;
    }
  }
}

// Ranks that take part in a task, those that only store a part of it first.
std::vector<std::size_t> ranks_of(const MatrixTask& task) {
  std::vector<std::size_t> ranks;
  for (const Fragment& fragment : task.fragments) {
    ranks.push_back(static_cast<std::size_t>(fragment.rank));
  }
  for (const int rank : task.computing) {
    ranks.push_back(static_cast<std::size_t>(rank));
  }
  return ranks;
}

// The largest round of matrices that stay, which are taken by equal shapes, as many as
// options.exchange_bytes allow.
void raise_to_local_rounds(
    std::vector<double>& largest,
    const BufferPlan& plan,
    const Routing& routing,
    const OptimizerOptions& options) {
  std::vector<std::size_t> order;
  for (std::size_t index = 0; index < plan.tasks.size(); ++index) {
    if (!plan.tasks[index].moves) {
      order.push_back(index);
    }
  }
  const auto shape = [&](std::size_t index) {
    const RoutedParameter& parameter = routing.parameters[plan.tasks[index].parameter];
    return std::pair{parameter.rows, parameter.cols};
  };
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return shape(a) < shape(b);
  });
  const auto limit = static_cast<double>(options.exchange_bytes / sizeof(float));
  std::vector<double> round(largest.size(), 0.0);
  for (const std::size_t index : order) {
    const auto size = static_cast<double>(plan.tasks[index].size);
    for (const int rank : plan.tasks[index].computing) {
      double& elements = round[static_cast<std::size_t>(rank)];
      elements = elements > 0 && elements + size > limit ? size : elements + size;
      double& most = largest[static_cast<std::size_t>(rank)];
      most = std::max(most, elements);
    }
  }
}

}  // namespace

std::vector<double> scratch_bytes(
    const BufferPlan& plan, const Routing& routing, const OptimizerOptions& options) {
  const auto ranks = static_cast<std::size_t>(plan.ranks);
  std::vector<double> largest(ranks, 0.0);
  std::vector<Buffers> round(ranks);
  std::size_t begin = 0;
  for (const std::size_t end : plan.round_ends) {
    for (std::size_t index = begin; index < end; ++index) {
      if (plan.tasks[index].moves) {
        add_moving(round, plan.tasks[index]);
      }
    }
    for (std::size_t index = begin; index < end; ++index) {
      for (const std::size_t rank : ranks_of(plan.tasks[index])) {
        largest[rank] = std::max(largest[rank], round[rank].all());
        round[rank] = {};
      }
    }
    begin = end;
  }
  raise_to_local_rounds(largest, plan, routing, options);
  std::vector<double> workspace_of(routing.parameters.size(), -1.0);
  std::vector<double> workspace(ranks, 0.0);
  for (const MatrixTask& task : plan.tasks) {
    double& need = workspace_of[task.parameter];
    need = need < 0 ? workspace_elements(routing.parameters[task.parameter]) : need;
    for (const int rank : task.computing) {
      double& most = workspace[static_cast<std::size_t>(rank)];
      most = std::max(most, need);
    }
  }
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    largest[rank] = sizeof(float) * (largest[rank] + workspace[rank]);
  }
  return largest;
}

double replicated_scratch_bytes(
    const BufferPlan& plan, const Routing& routing, const OptimizerOptions& options) {
  BufferPlan alone;
  alone.layout = Layout::kReplicated;
  for (const PlacedParameter& placed : plan.placed) {
    const RoutedParameter& parameter = routing.parameters[placed.parameter];
    for (std::size_t matrix = 0; matrix < parameter.matrices; ++matrix) {
      alone.tasks.push_back({placed.parameter, 0, parameter.unit, {}, {0}, false});
    }
  }
  return scratch_bytes(alone, routing, options).front();
}

}  // namespace muster::optimizer
