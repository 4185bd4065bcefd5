// SPDX-License-Identifier: Apache-2.0
// Mixture of block attention (MoBA, arXiv 2502.13189): each query attends to its own block and to
// the past blocks whose mean keys score highest; exact softmax over the union.
//
// Rules (where public implementations differ, the choice and its reason are in
// docs/concepts/moba.md):
//   blocks    of `block` keys from each sequence's first token; the last one may be short
//   gate      q . mean of the block's keys as attention sees them (after RoPE), unscaled, fp32
//   choice    per (query, query head): the current block and the best top_k - 1 blocks that are
//             wholly in the past; ties go to the larger block index; a NaN score is never chosen
//             and is counted
//   degrees   top_k = 1 is block-diagonal causal; a sequence of at most top_k blocks is exact full
//             attention
// The gate is not differentiated. No array of tokens x blocks x heads is ever in memory, and q, k
// and v are not copied per block.
//
// Layout, determinism, errors and threads as in attention.h; bias and a negative scale are refused.
// Sequences of at most top_k blocks have the result of exact attention, bit for bit.
#pragma once

#include <muster/kernels/attention.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace muster::kernels {

struct MobaOptions {
  std::int64_t block{512};
  int top_k{3};                 // blocks per query, the current one included
  bool force_neighbour{false};  // the block before the current one is always among them
  bool share_in_group{false};   // heads of a group choose together, by the sum of their scores
  // Final number of keys of each sequence, if the call has only a prefix of it: an early chunk of
  // prefill then chooses, sums and drops NaN scores exactly as the whole sequence does. Zero if the
  // sequences are whole.
  std::int64_t whole_length{0};
};

// Choices of the gate, for the backward pass: block lists by query row. Opaque; grows as needed.
class MobaSelection {
 public:
  MobaSelection();
  ~MobaSelection();
  MobaSelection(const MobaSelection&) = delete;
  MobaSelection& operator=(const MobaSelection&) = delete;
  MobaSelection(MobaSelection&&) noexcept;
  MobaSelection& operator=(MobaSelection&&) noexcept;

  struct State;

  [[nodiscard]] State& state() { return *state_; }

  [[nodiscard]] const State& state() const { return *state_; }

  // Returns the ascending block indices of a query of the last forward, the current one included.
  [[nodiscard]] std::vector<std::int32_t> blocks_of(int head, std::int64_t row) const;

 private:
  std::unique_ptr<State> state_;
};

// Statistics of one call per query head; empty spans are skipped. Sequences of at most top_k blocks
// have no gate and are left out of its statistics.
struct MobaStatistics {
  std::span<float> selected_max_logit;  // [heads] exact, over pairs that were attended
  // [heads] scale * largest gate score of a candidate: <= full max; -inf without candidates.
  std::span<float> gate_bound;
  std::span<float> norm_bound;               // [heads] scale * max |q| * max |k|: >= full max
  std::span<std::int64_t> nonfinite_rows;    // [heads]
  std::span<std::int64_t> nonfinite_scores;  // [heads] gate scores that were NaN or infinite
  std::span<std::int64_t> block_counts;      // [heads, max blocks of a sequence] times chosen
  std::span<double> sink_share;  // [heads] share of block 0 among chosen past blocks, or 0
  // [heads] mean of the lowest chosen less the best rejected score; NaN if no query rejected one.
  std::span<double> gate_margin;
  std::span<std::int64_t> gate_margin_rows;  // [heads] queries in the mean of gate_margin
};

// Computes mean keys [kv_heads, blocks of all sequences, head_dim], fp32, of the problem's k. Kept
// beside a KV cache for decoding: a complete block's mean never changes.
[[nodiscard]] Status moba_block_means(
    const AttentionProblem& problem,
    const MobaOptions& options,
    AttentionInput k,
    std::span<float> means,
    std::span<std::int64_t> nonfinite_keys);  // [kv_heads] or empty

[[nodiscard]] std::int64_t moba_block_count(std::span<const std::int64_t> cu_k, std::int64_t block);

// As attention_forward. If a sequence has fewer queries than keys, they are its last ones, so that
// prefill in chunks equals prefill at once, and a single query is a decoding step. `means` of
// moba_block_means; if empty, they are computed here.
[[nodiscard]] Status moba_forward(
    const AttentionProblem& problem,
    const MobaOptions& options,
    const AttentionInputs& inputs,
    std::span<const float> means,
    const AttentionOutputs& outputs,
    MobaSelection& selection,
    const MobaStatistics& statistics = {});

// `selection` of the forward of the same tensors, or of moba_choose.
[[nodiscard]] Status moba_backward(
    const AttentionProblem& problem,
    const MobaOptions& options,
    const AttentionInputs& inputs,
    const AttentionGradients& gradients,
    const MobaSelection& selection);

// ---- in parts -----------------------------------------------------------------------------------
// For callers that hold the keys of a sequence piece by piece, as a ring of ranks does: all choices
// first, then attention piece by piece, merged by merge_partial_attention.

// The gate of moba_forward alone. `statistics` may have those of the gate and of choices only.
[[nodiscard]] Status moba_choose(
    const AttentionProblem& problem,
    const MobaOptions& options,
    AttentionInput q,
    std::span<const float> means,
    MobaSelection& selection,
    const MobaStatistics& statistics);

// Keys [begin, end) of a sequence; may begin and end inside a block.
struct MobaKeyRange {
  std::int64_t begin{0};
  std::int64_t end{0};
};

struct MobaPartStatistics {
  std::span<float> selected_max_logit;  // [heads] raised to that of the range
  // [heads, queries] set to 1 for rows that moba_forward would count, otherwise unchanged.
  std::span<std::uint8_t> nonfinite_rows;
};

// As moba_forward over those keys of the chosen blocks that are in `range`; rows that see none of
// them have out 0 and lse -inf. The problem is fp32 or fp64 and one sequence of more than top_k
// blocks; its cu_k counts all of its keys, k and v hold those of `range`.
[[nodiscard]] Status moba_attend_range(
    const AttentionProblem& problem,
    const MobaOptions& options,
    MobaKeyRange range,
    const AttentionInputs& inputs,
    const MobaSelection& selection,
    const AttentionOutputs& outputs,
    const MobaPartStatistics& statistics);

// From the global out and lse. Overwrites dk and dv of the range, and dq with its share of dq.
[[nodiscard]] Status moba_attend_range_backward(
    const AttentionProblem& problem,
    const MobaOptions& options,
    MobaKeyRange range,
    const AttentionInputs& inputs,
    const AttentionGradients& gradients,
    const MobaSelection& selection);

// Computes the parts of norm_bound: the largest squared norm of a row, +inf where a row is not
// finite, 0 without rows; per head of q and of k.
[[nodiscard]] Status moba_largest_norms(
    const AttentionProblem& problem,
    AttentionInput q,
    AttentionInput k,
    std::span<double> q_squares,
    std::span<double> k_squares);

[[nodiscard]] float moba_norm_bound(
    const AttentionProblem& problem, double q_square, double k_square);

// Coverage of the gradients of a block attention layer: its blocks are (kv head, block) pairs. All
// zero where an argument is invalid.
[[nodiscard]] GradientCoverage moba_gradient_coverage(
    const AttentionProblem& problem, const MobaSelection& selection, const AttentionInput& dout);

// Multiply-adds * 2 that a call with these options needs at least (docs/concepts/moba.md).
[[nodiscard]] double moba_flops(
    const AttentionProblem& problem, const MobaOptions& options, bool backward);

// ---- former name, for one release ---------------------------------------------------------------

struct GradientReach {
  double query_share{0};
  double block_share{0};
};

[[deprecated("use moba_gradient_coverage")]] [[nodiscard]] inline GradientReach moba_gradient_reach(
    const AttentionProblem& problem, const MobaSelection& selection, AttentionInput dout) {
  const GradientCoverage found = moba_gradient_coverage(problem, selection, dout);
  const auto share = [](std::int64_t part, std::int64_t whole) {
    return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
  };
  return {share(found.queries_reached, found.queries), share(found.blocks_reached, found.blocks)};
}

}  // namespace muster::kernels
