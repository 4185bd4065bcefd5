// SPDX-License-Identifier: Apache-2.0
// Placement of every parameter, the rank that stores and updates each part of it, and the ranks
// that assemble whole matrices: pure functions of the routed parameters and the number of ranks.
//
// Invariants: (1) over all ranks every element has exactly one primary shard; without kReplicated
// it
//                 has exactly one shard at all;
//             (2) a rank stores at most one contiguous shard of a parameter (a stack's matrices of
//                 one owner are neighbours; kRowShards deals out a stack by whole matrices, the
//                 rows of its dimension 0);
//             (3) a parameter is contiguous in its buffer and in one bucket;
//             (4) a shard begins and ends at multiples of the cut granularity from the start of its
//                 unit (the parameter, or the matrix of a stack), or at the unit's end. Where
//                 kRowShards has no 8-bit states to keep whole, it cuts after any row.
#pragma once

#include "optimizer/src/routing/routing.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace muster::optimizer {

// A (placement, elementwise | matrices, dtype) part of the model, which has its own buffer.
struct BufferKey {
  Placement placement{Placement::kReplicated};
  bool matrices{false};  // Muon's
  DType dtype{DType::kFloat32};

  friend auto operator<=>(const BufferKey&, const BufferKey&) = default;
};

// A run of the buffer's memory that is reduced by one reduce-scatter (kReplicated: one all-reduce)
// and gathered by one all-gather. Positions are elements from the buffer's start. Buckets cover all
// placed parameters, do not overlap, and are listed in launch order: the bucket of the last
// parameters first.
struct Bucket {
  std::size_t begin{0};
  std::vector<std::size_t> counts;      // [ranks] elements, in rank order; kReplicated: empty
  std::size_t size{0};                  // sum of counts; kReplicated: the run's length
  std::vector<std::size_t> parameters;  // placed in it, indices into Routing::parameters
};

struct PlacedParameter {
  std::size_t parameter{0};  // index into Routing::parameters
  std::size_t begin{0};      // elements from the start of the buffer
};

// The part of one parameter that one rank stores.
struct Shard {
  std::size_t parameter{0};
  std::size_t buffer_begin{0};
  std::size_t parameter_begin{0};
  std::size_t size{0};
  bool primary{true};  // this rank counts it in statistics and saves it in checkpoints
};

// A part of a matrix in the storage of one rank.
struct Fragment {
  int rank{0};
  std::size_t begin{0};  // in the matrix
  std::size_t size{0};   // > 0
};

// One matrix that is orthogonalised as a whole. kWholeMatrices and kReplicated: one fragment per
// computing rank, the whole matrix, nothing moves.
struct MatrixTask {
  std::size_t parameter{0};
  std::size_t begin{0};  // of the matrix in its parameter
  std::size_t size{0};
  std::vector<Fragment> fragments;  // ascending by begin
  std::vector<int> computing;       // ranks that orthogonalise it, ascending
  bool moves{false};                // some computing rank lacks a part of it
};

struct BufferPlan {
  BufferKey key;
  Layout layout{Layout::kWholeMatrices};
  int ranks{1};
  std::size_t size{0};  // elements, alignment padding included
  std::vector<PlacedParameter> placed;
  std::vector<Bucket> buckets;
  std::vector<std::vector<Shard>> shards;  // [ranks], in memory order
  std::vector<MatrixTask> tasks;           // matrices buffers only
  // Tasks that move are exchanged in rounds of neighbouring tasks, to bound the scratch memory:
  // task indices [0, b1), [b1, b2), ... up to tasks.size(). One round when nothing moves.
  std::vector<std::size_t> round_ends;
  std::vector<double> newton_schulz_flops;  // [ranks]
};

// Parameters start on cache lines (elements, whatever the dtype).
inline constexpr std::size_t kAlignmentElements = 32;

// A stack of matrices stays on one rank as long as that costs no more than this over the lower
// bound max(sum / ranks, largest matrix); it saves a collective per stack. Below 4/3 - 1/(3 ranks),
// so Graham's bound holds both ways.
inline constexpr double kWholeStackSlack = 1.1;

// The parameters of `key`; `ranks` hold them. A buffer without parameters has size 0.
[[nodiscard]] BufferPlan plan_buffer(
    const Routing& routing, const OptimizerOptions& options, const BufferKey& key, int ranks);

// All keys that have parameters, in a fixed order.
[[nodiscard]] std::vector<BufferKey> buffer_keys(const Routing& routing);

// Newton-Schulz flops of one matrix of the parameter, its blocks added up.
[[nodiscard]] double matrix_flops(const RoutedParameter& parameter, const MuonOptions& options);

}  // namespace muster::optimizer
