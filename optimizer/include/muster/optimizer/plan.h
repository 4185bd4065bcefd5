// SPDX-License-Identifier: Apache-2.0
// The cost of a ZeRO-1 plan as a pure function of specs, options and rank counts: known before any
// run, equal on all ranks, printed by `muster plan optimizer`.
#pragma once

#include <muster/optimizer/options.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace muster::optimizer {

// Bytes one rank sends per step. With rho = (N - 1) / N over the N ranks that hold a bucket of n
// elements (alignment padding included), whatever its counts:
//   reduce-scatter  rho 4 n             gradients are fp32
//   all-gather      rho b n             b bytes per element of the parameter's dtype
//   all-reduce      2 rho 4 n           kReplicated, which gathers nothing
//   exchange        4 bytes per element of a fragment and other rank it goes to, fp32 both ways
// A ring sends n minus one rank's part, which is rho n on average over the ranks.
struct StepTraffic {
  double reduce_scatter{0};  // all-reduce of kReplicated included
  double all_gather{0};
  double exchange{0};  // directions to where they are orthogonalised, and results back
  double agc{0};       // the packed row norms, when adaptive clipping is on
};

struct RankCost {
  double parameter_bytes{0};  // what forward reads, whole, padding included
  double gradient_bytes{0};   // fp32, whole, padding included
  double master_bytes{0};     // fp32 masters of owned 16-bit elements
  double state_bytes{0};      // optimizer states in their storage type, absmax included
  double scratch_bytes{0};    // largest exchange and Newton-Schulz workspace
  double newton_schulz_flops{0};
  StepTraffic traffic;
};

// Cost of one parameter buffer, which holds a (placement, elementwise | matrices, dtype) part of
// the model.
struct RegionCost {
  std::string name;  // e.g. "replicated matrices bf16"
  int ranks{1};      // that hold it
  std::int64_t parameters{0};
  std::int64_t elements{0};
  std::int64_t padding_elements{0};
  std::int64_t matrices{0};
  std::int64_t cut_matrices{0};      // stored by more than one rank
  std::int64_t collectives{0};       // per step, reduce + gather + exchange
  double repeated_newton_schulz{1};  // flops over all ranks / flops of one rank alone
  std::vector<RankCost> cost;        // [ranks]
};

struct PlanReport {
  Layout layout{Layout::kWholeMatrices};
  std::uint64_t hash{0};
  std::vector<RegionCost> regions;

  // Sums over regions for world rank `rank`; expert regions repeat every `expert_ranks`. Regions
  // take turns, so scratch is the largest, not the sum.
  [[nodiscard]] RankCost of_rank(int rank) const;
};

// `ranks` hold the replicated parameters, `expert_ranks` share each expert parameter (ranks / EP
// size). Errors as Optimizer::create, and kInvalidArgument for fewer than 1 rank or expert_ranks
// that do not divide ranks. Cost: O(matrices * log + ranks).
[[nodiscard]] Expected<PlanReport> report_plan(
    std::vector<ParameterSpec> specs, const OptimizerOptions& options, int ranks, int expert_ranks);

// For people: one table per region with the lightest, median and heaviest rank, totals, and the
// communication per step.
[[nodiscard]] std::string to_text(const PlanReport& report);

}  // namespace muster::optimizer
