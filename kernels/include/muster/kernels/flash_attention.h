// Exact softmax attention over packed sequences of different lengths, forward and backward, blocked
// with online softmax: no [N, N] matrix is ever in memory.
//
// Layout: q [total_q, heads, head_dim], k and v [total_k, kv_heads, head_dim]. Query head h reads
// kv head h / (heads / kv_heads). Sequence i is rows [cu_q[i], cu_q[i + 1]) of q and [cu_k[i],
// cu_k[i + 1]) of k and v; lengths may be 0. A causal mask is aligned to the bottom right: query r
// of a sequence of n_q queries and n_k keys sees keys j <= r + n_k - n_q.
//
// Determinism: the result is the same bit for bit on every repeat, for every number of threads, and
// for a sequence alone or packed with others. Instruction sets differ by summation order only;
// attention_path() says which one runs.
//
// Errors: kInvalidArgument naming the argument and the rule it breaks, and nothing written.
// Thread-safety: functions of their arguments; `threads` are theirs for the call.
#pragma once

#include <muster/common/expected.h>
#include <muster/kernels/attention_type.h>

#include <cstdint>
#include <span>

namespace muster::kernels {

// A tensor [tokens, heads, head_dim] by its strides, in elements; the head dimension is contiguous.
struct AttentionInput {
  const void* data{nullptr};
  std::int64_t token_stride{0};  // 0: heads * head_dim
  std::int64_t head_stride{0};   // 0: head_dim
  // Tokens that it has room for, so that offsets which overrun it are refused; 0: not said.
  std::int64_t tokens{0};
};

struct AttentionOutput {
  void* data{nullptr};
  std::int64_t token_stride{0};
  std::int64_t head_stride{0};
  std::int64_t tokens{0};
};

struct AttentionProblem {
  AttentionType type{AttentionType::kFloat32};
  int heads{0};
  int kv_heads{0};                     // divides heads; 0: heads
  int head_dim{0};                     // 8 to 256
  std::span<const std::int64_t> cu_q;  // [sequences + 1], ascending from 0
  std::span<const std::int64_t> cu_k;  // empty: cu_q
  bool causal{true};
  double scale{0};    // 0: 1 / sqrt(head_dim)
  double softcap{0};  // c > 0: a logit becomes c tanh(logit / c), after the max logit was taken
  // Added to scaled logits: bias[h * head_stride + r * row_stride + j] for query r and key j of
  // their sequence (same for all sequences); null: none. fp32, not differentiated.
  const float* bias{nullptr};
  std::int64_t bias_head_stride{0};
  std::int64_t bias_row_stride{0};
  int threads{1};
};

// Per query head, over all visible pairs of the call.
struct AttentionStatistics {
  // [heads] exact maximum of scale * q . k + bias before softcap, signed, fp32; -inf: the head saw
  // nothing. NaN logits do not enter it: they are counted, so that a maximum that looks healthy in
  // a NaN event comes with a count that does not.
  std::span<float> max_logit;
  // [heads] rows (queries) with a NaN or +inf logit, or with a non-finite output.
  std::span<std::int64_t> nonfinite_rows;
};

// out like q (type of the problem); lse [heads, total_q] fp32 (fp64 for kFloat64), natural log,
// -inf and out 0 for rows that see nothing. A NaN in q or k or v reaches every output that sees it
// and no other; a key whose logit is -inf is seen, with a weight of 0. `statistics` spans may be
// empty. Method and measurements: docs/concepts/attention.md.
[[nodiscard]] Status flash_attention_forward(
    const AttentionProblem& problem,
    AttentionInput q,
    AttentionInput k,
    AttentionInput v,
    AttentionOutput out,
    void* lse,
    const AttentionStatistics& statistics);

// From the global out and lse of a forward (or of a merge of partial ones). dq like q, dk and dv
// like k, in the type of the problem, overwritten; a group's dk and dv are summed in fp32. dlse
// [heads, total_q] (type of lse) is the gradient of lse where it is an output of its own; null:
// none. What is not finite in a row of dout reaches dq of that row and dk, dv of the keys it sees.
[[nodiscard]] Status flash_attention_backward(
    const AttentionProblem& problem,
    AttentionInput q,
    AttentionInput k,
    AttentionInput v,
    AttentionInput out,
    const void* lse,
    AttentionInput dout,
    const void* dlse,
    AttentionOutput dq,
    AttentionOutput dk,
    AttentionOutput dv);

// Merges two partial results over disjoint keys, in place into (out, lse): fp32 partials
// [rows, heads, head_dim] and [heads, rows] natural log. -inf is the identity; no overflow for any
// spread. Used by context parallelism.
void merge_partial_attention(
    std::int64_t rows,
    int heads,
    int head_dim,
    float* out,
    float* lse,
    const float* other_out,
    const float* other_lse);

// "avx512_bf16", "avx512", "avx2" or "baseline": what a call of this type runs on this machine.
[[nodiscard]] const char* attention_path(AttentionType type);

// Multiply-adds * 2 of the visible pairs, forward 4 d, backward 10 d each.
[[nodiscard]] double attention_flops(const AttentionProblem& problem, bool backward);

}  // namespace muster::kernels
