// Attention whose sequences are spread over the ranks of a communicator. Runs the operators of
// attention.h and moba.h on local rows, and moves keys, values and gradients between ranks.
//
// Every rank holds some rows of every sequence (ContextPlan) of q, k and v. Queries stay where they
// are. Tensors are fp32 and contiguous: [plan.row_count(rank), heads, head_dim] and likewise with
// kv_heads; partial results and gradients are fp32 throughout.
//
// All functions with a ContextCall are collective: every rank calls them with an equal plan and
// problem, also a rank without rows. Errors: kInvalidArgument naming the argument, found before
// anything moves; those of comm (a dead peer is named, a passed deadline) otherwise, after which
// outputs are unspecified. Method and bytes: docs/concepts/context_parallel.md.
// Thread-safety: as the communicator's.
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

// Rows [begin, end) of a sequence, never empty; the first of them is row `local` of the shard.
struct ContextSegment {
  std::int64_t sequence{0};
  std::int64_t begin{0};
  std::int64_t end{0};
  std::int64_t local{0};

  [[nodiscard]] std::int64_t rows() const { return end - begin; }
};

// Which rows of packed sequences each rank holds. Chunk c of C of a sequence of n rows is rows
// [n c / C, n (c + 1) / C), rounded down: any length, also 0, shorter than the ranks are many, or
// no multiple of a block. A shard is packed by sequence, then by position.
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

  // Row of the whole pack of each row of the shard.
  [[nodiscard]] std::vector<std::int64_t> pack_rows(int rank) const;

 private:
  std::vector<std::int64_t> cu_;
  std::vector<std::vector<ContextSegment>> segments_;  // by rank
  std::vector<std::int64_t> rows_;                     // by rank
};

// What queries of one segment see of the keys of another of the same sequence, by position.
enum class ContextRelation : std::uint8_t { kNothing, kDiagonal, kAll };

[[nodiscard]] ContextRelation context_relation(
    const ContextSegment& queries, const ContextSegment& keys, bool causal);

enum class ContextForm : std::uint8_t {
  kAllGather,  // every rank holds all keys for the call; gradients are reduced in rank order
  kRing,       // shards go round in P steps; a rank holds two of them at a time
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
  // kFloat32, without cu_q, cu_k (they are the plan's) and bias.
  kernels::AttentionProblem problem;
  Deadline deadline;
  ContextTraffic* traffic{nullptr};  // added to; null: not counted
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

// lse [heads, plan.row_count(rank)] natural log. Statistics, where their spans are not empty, are
// those of all ranks together, equal on every rank, bit for bit those of one rank. Which of them
// are asked for is the same on all ranks.
[[nodiscard]] Status context_attention_forward(
    const ContextCall& call,
    ContextForm form,
    const ContextTensors& tensors,
    std::span<float> out,
    std::span<float> lse,
    const kernels::AttentionStatistics& statistics);

// From the global out and lse of the forward of this shard. The all-gather form gathers keys again,
// so that nothing of the size of all keys outlives a call.
[[nodiscard]] Status context_attention_backward(
    const ContextCall& call,
    ContextForm form,
    const ContextTensors& tensors,
    std::span<const float> out,
    std::span<const float> lse,
    std::span<const float> dout,
    const ContextGradients& gradients);

// Block attention's choices, one by segment of the rank's shard; query r of segment s is row r of
// choices[s].
struct ContextSelection {
  std::vector<kernels::MobaSelection> choices;
};

// Mean keys of the whole pack [kv_heads, blocks of all sequences, head_dim], on every rank. A block
// within one segment travels as its fp32 mean, bit for bit that of moba_block_means; of a block
// that straddles segments the fp64 sums of its parts travel and are added in order of position.
[[nodiscard]] Status context_block_means(
    const ContextCall& call,
    const kernels::MobaOptions& options,
    std::span<const float> k,
    std::vector<float>& means);

// Pooled keys first, then all choices, then keys: all-gathered, or going round, where a rank uses
// of each shard the blocks that its queries chose. Choices are those of one rank. Statistics are
// those of all ranks together, equal on every rank; bit for bit those of one rank, but for
// gate_margin, whose sum is in another order.
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
