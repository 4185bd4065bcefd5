// SPDX-License-Identifier: Apache-2.0
// Newton-Schulz cost, which tasks move, and the rounds they move in.
#include "optimizer/src/layout/build.h"

#include <muster/kernels/newton_schulz.h>
#include <muster/optimizer/newton_schulz_sets.h>

#include <algorithm>
#include <map>

namespace muster::optimizer {
namespace {

// Bytes that each rank assembles in the current round. A round touches few of many ranks, so
// starting one must not visit all.
class Assembled {
 public:
  explicit Assembled(int ranks) : bytes_of_(static_cast<std::size_t>(ranks)) {}

  void start_round() { ++round_; }

  // Zero at the start of a round.
  std::size_t& bytes(int rank) {
    Entry& entry = bytes_of_[static_cast<std::size_t>(rank)];
    if (entry.round != round_) {
      entry = {round_, 0};
    }
    return entry.bytes;
  }

 private:
  struct Entry {
    std::size_t round{0};
    std::size_t bytes{0};
  };

  std::vector<Entry> bytes_of_;
  std::size_t round_{0};
};

// A round ends before the task that would make some rank assemble more than options.exchange_bytes.
std::vector<std::size_t> round_ends_of(const BufferPlan& plan, const OptimizerOptions& options) {
  std::vector<std::size_t> ends;
  Assembled assembled{plan.ranks};
  for (std::size_t index = 0; index < plan.tasks.size(); ++index) {
    const MatrixTask& task = plan.tasks[index];
    if (!task.moves) {
      continue;
    }
    const std::size_t bytes = task.size * sizeof(float);
    const bool full = std::any_of(task.computing.begin(), task.computing.end(), [&](int rank) {
      const std::size_t held = assembled.bytes(rank);
      return held > 0 && held + bytes > options.exchange_bytes;
    });
    if (full) {
      ends.push_back(index);
      assembled.start_round();
    }
    for (const int rank : task.computing) {
      assembled.bytes(rank) += bytes;
    }
  }
  ends.push_back(plan.tasks.size());
  return ends;
}

}  // namespace

std::vector<double> flops_of_matrices(
    const Routing& routing, std::span<const std::size_t> selected, const MuonOptions& options) {
  const std::vector<kernels::NewtonSchulzStep> coefficients = newton_schulz_coefficients(options);
  kernels::NewtonSchulzOptions run;
  run.coefficients = coefficients;
  run.precision = options.precision;
  run.form = options.form;
  std::map<std::pair<std::int64_t, std::int64_t>, double> by_shape;
  std::vector<double> flops(routing.parameters.size(), 0.0);
  for (const std::size_t index : selected) {
    const RoutedParameter& parameter = routing.parameters[index];
    for (const MatrixBlock& block : parameter.blocks) {
      const auto [at, is_new] = by_shape.try_emplace({block.rows, parameter.cols}, 0.0);
      if (is_new) {
        at->second = kernels::choose_newton_schulz(block.rows, parameter.cols, run).flops;
      }
      flops[index] += at->second;
    }
  }
  return flops;
}

double matrix_flops(const RoutedParameter& parameter, const MuonOptions& options) {
  const std::size_t only = 0;
  return flops_of_matrices({{parameter}, {}}, {&only, 1}, options).front();
}

void finish_tasks(BufferPlan& plan, const LayoutInput& input) {
  for (MatrixTask& task : plan.tasks) {
    for (const int rank : task.computing) {
      plan.newton_schulz_flops[static_cast<std::size_t>(rank)] += input.flops[task.parameter];
    }
    const bool stays =
        plan.layout == Layout::kReplicated ||
        (task.fragments.size() == 1 && task.computing == std::vector{task.fragments.front().rank});
    task.moves = !stays;
  }
  plan.round_ends = round_ends_of(plan, input.options);
}

}  // namespace muster::optimizer
