// What expert parallelism takes before anything runs: bytes of buffers and wires of one rank, and
// when balancing pays. Formulas: docs/concepts/experts.md, "Sizes".
//
// Bytes and rows are those of one layer and one micro-batch of tokens_max tokens per rank. Nothing
// here allocates buffers; figures that may be fractions are double.
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
  std::int64_t ffn{0};     // H', of one expert
  int projections{3};      // matrices [H, H'] of an expert: gate, up and down
  kernels::FloatType type{
      kernels::FloatType::kBFloat16};  // of rows and weights; gradients of weights are fp32
};

// Of one rank.
struct EpSizes {
  // --- memory ---
  std::int64_t receive_rows{0};
  std::int64_t receive_bytes{0};  // rows, and 4 bytes each for their weights
  std::int64_t plan_bytes{0};     // one EpPlan; one is kept per layer until its backward
  std::int64_t counts_bytes{0};   // gathered before a plan: ranks * experts * 4
  std::int64_t expert_bytes{0};   // weights of one
  std::int64_t expert_gradient_bytes{0};
  std::int64_t home_weight_bytes{0};  // of one layer
  std::int64_t home_gradient_bytes{0};
  std::int64_t pool_weight_bytes{0};  // slots, once per process
  std::int64_t pool_gradient_bytes{0};
  // --- padding ---
  std::int64_t pad_rows_worst{0};
  double pad_fraction_worst{0};  // of tokens_max * top_k
  // --- wire, one direction ---
  double distinct_ranks{0};  // expected per token, of top_k experts drawn evenly
  double remote_rows{0};     // expected per token
  double remote_rows_not_deduplicated{0};
  int remote_rows_worst{0};
  double dispatch_bytes{0};        // rows as expected; combine sends as many back
  double dispatch_bytes_worst{0};  // every row to another rank
  double weight_bytes{0};          // gates that travel with the rows: 4 per remote choice
  double duplicate_bytes{0};       // written locally for rows that were sent once
  // --- per copy of an expert ---
  std::int64_t prefetch_bytes{0};  // home to slot
  std::int64_t reduce_bytes{0};    // slot to home, fp32
  // --- compute ---
  double forward_flops{0};  // of tokens_max * top_k rows; backward takes twice that
};

// kInvalidArgument as check of plan.h, or for hidden, ffn or projections below 1.
[[nodiscard]] Expected<EpSizes> ep_sizes(const EpLayerShape& layer);

// Expected number of distinct ranks among top_k different experts drawn evenly:
// R (1 - C(E - m, K) / C(E, K)).
[[nodiscard]] double ep_distinct_ranks(const EpShape& shape);

struct EpRates {
  double gemm_flops{0};  // per second and rank, as measured
  double link_bytes{0};  // per second, rank and direction
  double plan_seconds{10e-6};
  double overlap_seconds{0};  // of the copies behind other work
  int copies_out{3};          // of the busiest home: 3 to 5 at 8 ranks, docs/concepts/experts.md
};

// One pass with exactly even ranks against one without. Ordinary expert parallelism takes
// imbalance * (compute + dispatch), balanced takes compute + dispatch + cost.
struct EpBreakEven {
  double compute_seconds{0};  // even ranks
  double dispatch_seconds{0};
  double cost_seconds{0};  // plan, copies, and with backward their gradients, less overlap
  double imbalance{1};     // max over mean rows of a rank above which balancing pays
};

// Forward alone, (imbalance - 1) (T_gemm + T_dispatch) = T_plan + T_prefetch - overlap, or with
// `backward`: three times the products, four moves of rows, two prefetches and one reduction.
// Rates must be positive.
[[nodiscard]] EpBreakEven ep_break_even(const EpSizes& sizes, const EpRates& rates, bool backward);

// The fewest tokens per rank for which balancing pays at this imbalance; infinity where it is 1.
[[nodiscard]] double ep_break_even_tokens(
    const EpBreakEven& at_tokens_max, std::int64_t tokens_max, double imbalance);

}  // namespace muster::parallel
