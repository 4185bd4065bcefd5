// SPDX-License-Identifier: Apache-2.0
// Context parallelism: attention over sequences that are distributed over the ranks of a
// communicator. The operators of attention.h and moba.h are local; the functions here move
// keys, values and gradients between them.
//
// Every rank holds some rows of every sequence (ContextPlan) of q, k and v. Queries are never
// moved. Tensors are fp32 and contiguous: [plan.row_count(rank), heads, head_dim], keys and values
// with kv_heads. Partial results and gradients are fp32 throughout.
//
// All functions with a ContextCall are collective: every rank calls them with an equal plan and
// problem, including a rank without rows. Errors: kInvalidArgument naming the argument, before any
// data moves; otherwise those of comm (a dead peer by name, an expired deadline), after which
// outputs are unspecified. Method and bytes: docs/concepts/context_parallel.md. Thread-safety: as
// the communicator's.
#pragma once

#include <muster/comm/communicator.h>
#include <muster/kernels/attention.h>
#include <muster/kernels/moba.h>

#include <cstdint>
#include <span>
#include <vector>

namespace muster::parallel {

enum class ShardOrder : std::uint8_t {
  kContiguous,  // rank r holds chunk r of P: even work for block attention
  kZigzag,      // rank r holds chunks r and 2P - 1 - r of 2P: even work under a causal mask
};

// Rows [begin, end) of a sequence, never empty; the first is row `local` of the shard.
struct ContextSegment {
  std::int64_t sequence{0};
  std::int64_t begin{0};
  std::int64_t end{0};
  std::int64_t local{0};

  [[nodiscard]] std::int64_t rows() const { return end - begin; }
};

// Assigns the rows of packed sequences to ranks. Chunk c of C of a sequence of n rows is rows
// [n c / C, n (c + 1) / C), rounded down, for any n: zero, fewer than the ranks, or not a multiple
// of a block. A shard is packed by sequence, then by position.
class ContextPlan {
 public:
  // cu [sequences + 1], ascending from 0.
  [[nodiscard]] static Expected<ContextPlan> create(
      std::span<const std::int64_t> cu, int ranks, ShardOrder order);

  [[nodiscard]] int ranks() const { return static_cast<int>(segments_.size()); }

  [[nodiscard]] std::span<const std::int64_t> cu() const { return cu_; }

  [[nodiscard]] std::int64_t length(std::int64_t sequence) const;

  [[nodiscard]] std::span<const ContextSegment> segments(int rank) const;
  [[nodiscard]] std::int64_t row_count(int rank) const;

  // Returns the row in the whole pack of each row of the shard.
  [[nodiscard]] std::vector<std::int64_t> pack_rows(int rank) const;

 private:
  std::vector<std::int64_t> cu_;
  std::vector<std::vector<ContextSegment>> segments_;  // by rank
  std::vector<std::int64_t> rows_;                     // by rank
};

// Keys of one segment that the queries of another of the same sequence see by position.
enum class ContextRelation : std::uint8_t { kNothing, kDiagonal, kAll };

[[nodiscard]] ContextRelation context_relation(
    const ContextSegment& queries, const ContextSegment& keys, bool causal);

enum class ContextForm : std::uint8_t {
  kAllGather,  // every rank holds all keys for the call; gradients are reduced in rank order
  kRing,       // shards rotate in P steps; a rank holds two of them at a time
};

// Bytes that this rank received from others (all-gather, ring) or sent to them (reduce-scatter).
struct ContextTraffic {
  std::int64_t key_value_bytes{0};
  std::int64_t gradient_bytes{0};
  std::int64_t pooled_key_bytes{0};
};

struct ContextCall {
  comm::Communicator& world;
  const ContextPlan& plan;
  // kFloat32, without bias and without cu_q and cu_k, which are those of the plan.
  kernels::AttentionProblem problem;
  Deadline deadline;
  ContextTraffic* traffic{nullptr};  // bytes are added unless it is null
};

struct ContextTensors {
  std::span<const float> q;
  std::span<const float> k;
  std::span<const float> v;
};

struct ContextGradients {
  std::span<float> dq;
  std::span<float> dk;
  std::span<float> dv;
};

// lse [heads, plan.row_count(rank)], natural log. Statistics with non-empty spans cover all ranks,
// are equal on every rank, and match one rank bit for bit. All ranks must request the same ones.
[[nodiscard]] Status context_attention_forward(
    const ContextCall& call,
    ContextForm form,
    const ContextTensors& tensors,
    std::span<float> out,
    std::span<float> lse,
    const kernels::AttentionStatistics& statistics);

// Takes the global out and lse of this shard's forward. The all-gather form gathers keys again, so
// that no buffer with all keys outlives a call.
[[nodiscard]] Status context_attention_backward(
    const ContextCall& call,
    ContextForm form,
    const ContextTensors& tensors,
    std::span<const float> out,
    std::span<const float> lse,
    std::span<const float> dout,
    const ContextGradients& gradients);

// Choices of block attention for each segment of the rank's shard; query r of segment s is row r of
// choices[s].
struct ContextSelection {
  std::vector<kernels::MobaSelection> choices;
};

// Computes the mean keys of the whole pack [kv_heads, blocks of all sequences, head_dim] on every
// rank. A block within one segment is sent as its fp32 mean, bit for bit that of moba_block_means.
// A block that straddles segments is sent as fp64 sums of its parts, added in order of position.
[[nodiscard]] Status context_block_means(
    const ContextCall& call,
    const kernels::MobaOptions& options,
    std::span<const float> k,
    std::vector<float>& means);

// Exchanges pooled keys, makes all choices, then exchanges keys by all-gather or ring; in the ring
// a rank uses of each shard the blocks that its queries chose. Choices are those of one rank.
// Statistics cover all ranks, are equal on every rank and match one rank bit for bit, except
// gate_margin, whose sum has another order.
[[nodiscard]] Status context_moba_forward(
    const ContextCall& call,
    ContextForm form,
    const kernels::MobaOptions& options,
    const ContextTensors& tensors,
    std::span<float> out,
    std::span<float> lse,
    ContextSelection& selection,
    const kernels::MobaStatistics& statistics);

[[nodiscard]] Status context_moba_backward(
    const ContextCall& call,
    ContextForm form,
    const kernels::MobaOptions& options,
    const ContextTensors& tensors,
    std::span<const float> out,
    std::span<const float> lse,
    std::span<const float> dout,
    const ContextSelection& selection,
    const ContextGradients& gradients);

}  // namespace muster::parallel
