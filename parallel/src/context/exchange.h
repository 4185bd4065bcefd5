// SPDX-License-Identifier: Apache-2.0
// Sizes, checks and row exchanges shared by the forms of context parallelism.
#pragma once

#include <muster/parallel/context.h>

namespace muster::parallel {

struct ContextSizes {
  explicit ContextSizes(const ContextCall& call);

  std::int64_t rank;
  std::int64_t rows;  // rows of this rank's shard
  std::int64_t heads;
  std::int64_t q_row;   // elements of a row of q
  std::int64_t kv_row;  // elements of a row of k
  std::int64_t all_rows;
};

// Checks the call and the sizes of its tensors. Returns the same Status on all ranks, except for
// tensor sizes.
[[nodiscard]] Status check_context_call(
    const ContextCall& call, const kernels::MobaOptions* options);
[[nodiscard]] Status check_context_keys(const ContextCall& call, std::span<const float> k);
[[nodiscard]] Status check_context_forward(
    const ContextCall& call,
    const ContextTensors& tensors,
    std::span<const float> out,
    std::span<const float> lse,
    const kernels::AttentionStatistics& statistics);
[[nodiscard]] Status check_context_backward(
    const ContextCall& call,
    const ContextTensors& tensors,
    std::span<const float> out,
    std::span<const float> lse,
    std::span<const float> dout,
    const ContextGradients& gradients);

// Rows [plan.row_count(rank), row] of every rank, in order of the pack.
[[nodiscard]] Status gather_rows(
    const ContextCall& call,
    std::span<const float> shard,
    std::int64_t row,
    std::vector<float>& all,
    std::int64_t* bytes);

struct GatheredKeys {
  std::vector<float> k;
  std::vector<float> v;
};

[[nodiscard]] Status gather_keys(
    const ContextCall& call, const ContextTensors& tensors, GatheredKeys& all);

// The keys that a segment may see are a prefix of its sequence.
[[nodiscard]] std::int64_t visible_keys(const ContextCall& call, const ContextSegment& segment);
[[nodiscard]] std::int64_t first_key(const ContextCall& call, const ContextSegment& segment);

// Sums gradients of all rows, in order of the pack, over the ranks and returns this rank's shard.
[[nodiscard]] Status reduce_rows(
    const ContextCall& call,
    const std::vector<float>& all,
    std::int64_t row,
    std::span<float> shard,
    std::int64_t* bytes);

// Copies lse of a segment [heads, segment rows] from and to that of the shard [heads, shard rows].
std::vector<float> segment_lse(
    std::span<const float> lse, const ContextSegment& segment, const ContextSizes& sizes);
void put_segment_lse(
    const std::vector<float>& part,
    const ContextSegment& segment,
    const ContextSizes& sizes,
    std::span<float> lse);

// Reduces statistics per head of this rank over all ranks; only those that `wanted` has room for.
struct ContextCounts {
  std::vector<float> max_logit;
  std::vector<std::int64_t> nonfinite_rows;

  explicit ContextCounts(std::int64_t heads);
  // Adds the statistics of a call over other pairs and other rows.
  void add(const ContextCounts& other);

  [[nodiscard]] kernels::AttentionStatistics spans() { return {max_logit, nonfinite_rows}; }

  [[nodiscard]] Status share(const ContextCall& call, const kernels::AttentionStatistics& wanted);
};

inline void add_to(float* to, const float* from, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    to[i] += from[i];
  }
}

}  // namespace muster::parallel
