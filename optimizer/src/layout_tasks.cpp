// Newton-Schulz cost, which tasks move, and the rounds they move in.
#include "src/layout_build.h"

#include <muster/kernels/newton_schulz.h>

#include <algorithm>
#include <map>

namespace muster::optimizer {
namespace {

bool is_complete(const MatrixTask& task, int rank) {
  return std::any_of(task.fragments.begin(), task.fragments.end(), [&](const Fragment& fragment) {
    return fragment.rank == rank && fragment.size == task.size;
  });
}

// A round ends before the task that would make some rank assemble more than options.exchange_bytes.
std::vector<std::size_t> round_ends_of(const RegionPlan& plan, const OptimizerOptions& options) {
  std::vector<std::size_t> ends;
  std::map<int, std::size_t> assembled;  // bytes per rank in this round
  for (std::size_t index = 0; index < plan.tasks.size(); ++index) {
    const MatrixTask& task = plan.tasks[index];
    if (!task.moves) {
      continue;
    }
    const std::size_t bytes = task.size * sizeof(float);
    const bool full = std::any_of(task.computing.begin(), task.computing.end(), [&](int rank) {
      const auto held = assembled.find(rank);
      return held != assembled.end() && held->second + bytes > options.exchange_bytes;
    });
    if (full) {
      ends.push_back(index);
      assembled.clear();
    }
    for (const int rank : task.computing) {
      assembled[rank] += bytes;
    }
  }
  ends.push_back(plan.tasks.size());
  return ends;
}

}  // namespace

double matrix_flops(const RoutedParameter& parameter, const MuonOptions& options) {
  double flops = 0;
  for (const MatrixBlock& block : parameter.blocks) {
    flops += kernels::newton_schulz_flops(
        options.form, block.rows, parameter.cols, options.newton_schulz_steps, 1);
  }
  return flops;
}

void finish_tasks(RegionPlan& plan, const LayoutInput& input) {
  const auto size = input.routing.parameters.size();
  std::vector<double> flops_of(size, -1.0);
  for (MatrixTask& task : plan.tasks) {
    double& flops = flops_of[task.parameter];
    if (flops < 0) {
      flops = matrix_flops(input.at(task.parameter), input.options.muon);
    }
    for (const int rank : task.computing) {
      plan.newton_schulz_flops[static_cast<std::size_t>(rank)] += flops;
    }
    task.moves = plan.layout != Layout::kReplicated &&
                 std::any_of(task.computing.begin(), task.computing.end(), [&](int rank) {
                   return !is_complete(task, rank);
                 });
  }
  plan.round_ends = round_ends_of(plan, input.options);
}

}  // namespace muster::optimizer
