// SPDX-License-Identifier: Apache-2.0
// Exact softmax attention, forward and backward, blocked with online softmax: no [N, N] matrix is
// ever in memory. Two forms by the same kernels: packed sequences of different lengths (checked,
// with grouped heads, bf16, softcap and bias), and sequences of one length (AttentionShape).
//
// Layout: q [total_q, heads, head_dim], k and v [total_k, kv_heads, head_dim]. Query head h reads
// kv head h / (heads / kv_heads). Sequence i is rows [cu_q[i], cu_q[i + 1]) of q and [cu_k[i],
// cu_k[i + 1]) of k and v; lengths may be 0. A causal mask is aligned to the bottom right: query r
// of a sequence of n_q queries and n_k keys sees keys j <= r + n_k - n_q.
//
// Determinism: the result is the same bit for bit on every repeat, for every number of threads, and
// for a sequence alone or packed with others. Instruction sets differ by summation order only;
// attention_path() names the one in use.
//
// Errors: kInvalidArgument naming the argument and the rule it breaks, and nothing written.
// Thread-safety: functions of their arguments. A call with `threads` > 1 starts that many for its
// duration.
#pragma once

#include <muster/common/dtype.h>
#include <muster/common/expected.h>

#include <cstdint>
#include <span>

namespace muster::kernels {

// A tensor [tokens, heads, head_dim] by its strides, in elements; the head dimension is contiguous.
struct AttentionInput {
  const void* data{nullptr};
  std::int64_t token_stride{0};  // zero stands for heads * head_dim
  std::int64_t head_stride{0};   // zero stands for head_dim
  // Capacity in tokens: offsets that exceed it are refused. Zero disables the check.
  std::int64_t tokens{0};
};

struct AttentionOutput {
  void* data{nullptr};
  std::int64_t token_stride{0};
  std::int64_t head_stride{0};
  std::int64_t tokens{0};
};

struct AttentionProblem {
  DType type{DType::kFloat32};
  int heads{0};
  int kv_heads{0};                     // divides heads; zero stands for heads
  int head_dim{0};                     // 8 to 256
  std::span<const std::int64_t> cu_q;  // [sequences + 1], ascending from 0 by at most 2^31 - 1
  std::span<const std::int64_t> cu_k;  // if empty, cu_q
  bool causal{true};
  double scale{0};    // zero stands for 1 / sqrt(head_dim)
  double softcap{0};  // c > 0: a logit becomes c tanh(logit / c), after the max logit was taken
  // If not null, added to scaled logits: bias[h * head_stride + r * row_stride + j] for query r and
  // key j of their sequence (same for all sequences). fp32, not differentiated.
  const float* bias{nullptr};
  std::int64_t bias_head_stride{0};
  std::int64_t bias_row_stride{0};
  int threads{1};
};

struct AttentionInputs {
  AttentionInput q;
  AttentionInput k;
  AttentionInput v;
};

// out like q, in the type of the problem; lse [heads, total_q] fp32 (fp64 for kFloat64), natural
// log, -inf and out 0 for rows that see nothing.
struct AttentionOutputs {
  AttentionOutput out;
  void* lse{nullptr};
};

// Tensors of a backward pass beside q, k and v: global out and lse of a forward (or of a merge of
// partial ones), their gradients, and the gradients to write. dq like q, dk and dv like k, in the
// type of the problem, overwritten; a group's dk and dv are summed in fp32.
struct AttentionGradients {
  AttentionInput out;
  const void* lse{nullptr};
  AttentionInput dout;
  // Gradient of lse, [heads, total_q] in the type of lse, if lse is an output too; otherwise null.
  // Exact attention only.
  const void* dlse{nullptr};
  AttentionOutput dq;
  AttentionOutput dk;
  AttentionOutput dv;
};

// Per query head, over all visible pairs of the call. Empty spans are skipped.
struct AttentionStatistics {
  // [heads] exact maximum of scale * q . k + bias before softcap, signed, fp32; -inf if the head
  // saw nothing. NaN logits are left out and counted instead, so that a maximum that looks healthy
  // in a NaN event comes with a count that does not.
  std::span<float> max_logit;
  // [heads] rows (queries) with a NaN or +inf logit, or with a non-finite output.
  std::span<std::int64_t> nonfinite_rows;
};

// A NaN in q or k or v reaches every output that sees it and no other; a key whose logit is -inf is
// seen, with a weight of 0. Method and measurements: docs/concepts/attention.md.
[[nodiscard]] Status attention_forward(
    const AttentionProblem& problem,
    const AttentionInputs& inputs,
    const AttentionOutputs& outputs,
    const AttentionStatistics& statistics = {});

// A non-finite value in a row of dout reaches dq of that row and dk, dv of the keys it sees.
[[nodiscard]] Status attention_backward(
    const AttentionProblem& problem,
    const AttentionInputs& inputs,
    const AttentionGradients& gradients);

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

// "avx512_bf16", "avx512", "avx2" or "baseline": the loops that a call of this type runs on this
// machine.
[[nodiscard]] const char* attention_path(DType type);

// Multiply-adds * 2 of the visible pairs, forward 4 d, backward 10 d each.
[[nodiscard]] double attention_flops(const AttentionProblem& problem, bool backward);

// Counts of the part of a layer that receives gradients under a loss mask; they sum over calls
// (docs/concepts/moba.md, "Reach").
struct GradientCoverage {
  std::int64_t queries{0};
  std::int64_t queries_reached{0};  // with a non-zero output gradient
  std::int64_t blocks{0};           // (kv head, block) pairs
  std::int64_t blocks_reached{0};   // attended to by such a query
};

// ---- sequences of one length --------------------------------------------------------------------

// Causal attention of `batch` sequences, not checked.
struct AttentionShape {
  std::int64_t batch{0};     // independent sequences
  std::int64_t sequence{0};  // tokens per sequence
  std::int64_t heads{0};
  std::int64_t head_dim{0};
  double scale{0};  // usually 1 / sqrt(head_dim)
};

// q, k, v, out: [batch, sequence, heads, head_dim]; lse: [batch, heads, sequence], natural log.
// max_logits[heads]: exact maximum over batch and visible (i >= j) pairs of scale * q_i . k_j,
// signed, before softmax, found while computing, at no extra pass. NaN or +Inf logits make it NaN /
// +Inf (NaN where there are both). A NaN in q, k or v makes `out` NaN for every token that sees it
// and for no earlier one. A -Inf logit hides its key. A query with both counts as +Inf. Working
// memory per thread: k and v of a sequence once more, packed.
template <typename T>
void attention_forward(
    const AttentionShape& shape,
    const T* q,
    const T* k,
    const T* v,
    T* out,
    T* lse,
    float* max_logits);

template <typename T>
struct AttentionShapeGradients {
  const T* out{nullptr};
  const T* lse{nullptr};
  const T* dout{nullptr};
  T* dq{nullptr};
  T* dk{nullptr};
  T* dv{nullptr};
};

// dq, dk, dv overwritten. Working memory per thread: a few times the tensors of a sequence.
template <typename T>
void attention_backward(
    const AttentionShape& shape,
    const T* q,
    const T* k,
    const T* v,
    const AttentionShapeGradients<T>& gradients);

// Counts the gradient coverage of exact attention, whose blocks are single keys, the same for all
// heads: a query reaches all keys up to its own. dout [batch, sequence, heads, head_dim].
template <typename T>
[[nodiscard]] GradientCoverage attention_gradient_coverage(
    const AttentionShape& shape, const T* dout);

}  // namespace muster::kernels
