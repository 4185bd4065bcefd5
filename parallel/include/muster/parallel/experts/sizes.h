// SPDX-License-Identifier: Apache-2.0
// Memory and traffic of expert parallelism, computed before a run: bytes of buffers and wires per
// rank, and the load imbalance above which balancing pays. Formulas: docs/concepts/experts.md,
// "Sizes".
//
// Bytes and rows are those of one layer and one micro-batch of tokens_max tokens per rank. Pure
// functions; values that may be fractional are double.
#pragma once

#include <muster/common/expected.h>
#include <muster/kernels/low_precision.h>
#include <muster/parallel/experts/plan.h>

#include <cstdint>

namespace muster::parallel {

struct EpLayerShape {
  EpShape shape;
  EpBalance balance;
  std::int64_t hidden{0};  // H
  std::int64_t ffn{0};     // H' of one expert
  int projections{3};      // matrices [H, H'] of an expert: gate, up and down
  // Type of rows and weights; weight gradients are fp32.
  DType type{DType::kBFloat16};
  bool inference{false};  // a forward pass only, without gradients
};

// False for inference, and with fewer slots than a rank has experts, which training refuses. The
// layer then has no gradients.
[[nodiscard]] bool ep_trains(const EpLayerShape& layer);

// Sizes of one rank.
struct EpSizes {
  // --- memory ---
  std::int64_t receive_rows{0};
  std::int64_t receive_bytes{0};  // rows with 4 bytes each for their gates
  std::int64_t plan_bytes{0};     // one EpPlan; a layer keeps one until its backward
  std::int64_t counts_bytes{0};   // gathered before a plan: ranks * experts * 4
  std::int64_t expert_bytes{0};   // weights of one expert
  std::int64_t expert_gradient_bytes{0};
  std::int64_t home_weight_bytes{0};  // weights of one layer
  std::int64_t home_gradient_bytes{0};
  std::int64_t pool_weight_bytes{0};  // slots, shared by all layers of a process
  std::int64_t pool_gradient_bytes{0};
  // --- padding ---
  std::int64_t pad_rows_worst{0};
  double pad_fraction_worst{0};  // fraction of tokens_max * top_k
  // --- wire, one direction ---
  double distinct_ranks{0};  // expected per token with top_k experts drawn evenly
  double remote_rows{0};     // expected per token
  double remote_rows_not_deduplicated{0};
  int remote_rows_worst{0};
  double dispatch_bytes{0};        // expected rows; combine returns as many
  double dispatch_bytes_worst{0};  // every row to another rank
  double weight_bytes{0};          // gates sent with the rows: 4 per remote choice
  double duplicate_bytes{0};       // local copies of rows that were sent once
  // --- per copy of an expert ---
  std::int64_t prefetch_bytes{0};  // home to slot
  std::int64_t reduce_bytes{0};    // slot to home, fp32
  // --- compute ---
  double forward_flops{0};  // for tokens_max * top_k rows; backward takes twice that
};

// Returns kInvalidArgument like check() of plan.h, or if hidden, ffn or projections is below 1.
[[nodiscard]] Expected<EpSizes> ep_sizes(const EpLayerShape& layer);

// Returns the expected number of distinct ranks among top_k different experts drawn evenly:
// R (1 - C(E - m, K) / C(E, K)).
[[nodiscard]] double ep_distinct_ranks(const EpShape& shape);

struct EpRates {
  double gemm_flops{0};  // measured, per second and rank
  double link_bytes{0};  // per second, rank and direction
  double plan_seconds{10e-6};
  double overlap_seconds{0};  // of copies that overlap other work
  int copies_out{3};  // copies of the busiest home: 3 to 5 with 8 ranks, docs/concepts/experts.md
};

// Compares a balanced pass with an unbalanced one, which takes imbalance * (compute + dispatch);
// the balanced pass takes compute + dispatch + cost.
struct EpBreakEven {
  double compute_seconds{0};  // with even ranks
  double dispatch_seconds{0};
  double cost_seconds{0};  // plan, copies and, with backward, their gradients, less overlap
  double imbalance{1};     // max over mean rows of a rank above which balancing pays
};

// Solves (imbalance - 1) (T_gemm + T_dispatch) = T_plan + T_prefetch - overlap for a forward pass,
// or with `backward` for three times the products, four moves of rows, two prefetches and one
// reduction. Rates must be positive.
[[nodiscard]] EpBreakEven ep_break_even(const EpSizes& sizes, const EpRates& rates, bool backward);

// Returns the fewest tokens per rank for which balancing pays at this imbalance, or infinity if it
// is 1.
[[nodiscard]] double ep_break_even_tokens(
    const EpBreakEven& at_tokens_max, std::int64_t tokens_max, double imbalance);

}  // namespace muster::parallel
