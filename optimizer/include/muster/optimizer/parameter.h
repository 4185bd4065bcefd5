// SPDX-License-Identifier: Apache-2.0
// Parameters of a model: names, shapes, memory of values and gradients, and the update rule of
// each.
#pragma once

#include <muster/common/expected.h>
#include <muster/kernels/low_precision.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace muster::optimizer {

// Storage of parameters and states (kernels/low_precision.h).
using kernels::StateType;
using FloatType [[deprecated("use muster::DType")]] = DType;

// One header each under muster/optimizer/rules/.
enum class Rule : std::uint8_t { kAdamW, kMuon, kSgd, kMomentum, kRmsProp, kAdam };

// "adamw", "muon", "sgd", "momentum", "rmsprop", "adam".
[[nodiscard]] const char* to_string(Rule rule);
[[nodiscard]] Expected<Rule> parse_rule(const std::string& name);

// kReplicated: every rank holds the same values; gradients are reduced over all ranks.
// kExpert: the values belong to one expert-parallel rank; gradients are reduced only over the ranks
// that hold the same experts.
enum class Placement : std::uint8_t { kReplicated, kExpert };

// Division of the rows of a matrix into blocks that Muon orthogonalises separately. If empty, the
// whole matrix is one block. `rows` is a pattern of row counts that `repeats` times fills the
// matrix: sum(rows) * repeats = rows of the matrix.
//   per head             rows {head_dim}, repeats = heads
//   [q | k | v]          rows {q, k, v}
//   fused QKV of a grouped-query attention, stored group by group
//                        rows {q_heads_per_group * d, d, d}, repeats = groups, merge_repeats: block
//                        i is made of the i-th run of every repeat (all queries, all keys, ...)
// The update's scale comes from the block's shape, not the parameter's.
struct MatrixBlocks {
  std::vector<std::int64_t> rows{};
  std::int64_t repeats{1};
  bool merge_repeats{false};

  friend bool operator==(const MatrixBlocks&, const MatrixBlocks&) = default;
};

// One tensor, row-major. A stack of matrices is [count, rows, cols]; Muon treats each matrix of a
// stack on its own.
struct ParameterSpec {
  std::string name{};                 // Unique, e.g. "layers.3.attention.wq".
  std::vector<std::int64_t> shape{};  // Local shape on this rank.
  Placement placement{Placement::kReplicated};
  // Type that forward and backward read. A 16-bit parameter has an fp32 master in the owner's
  // shard; gradients are always fp32.
  DType dtype{DType::kFloat32};
  MatrixBlocks blocks{};
};

// First rule whose `pattern` matches the name wins; '*' matches any run of characters.
struct RouteRule {
  std::string pattern;
  Rule rule{Rule::kAdamW};
  std::string group{};  // Name of the norm/statistics group, e.g. "attention".
  double weight_decay{0.0};
  double learning_rate_scale{1.0};
  // Storage of the rule's states. kInt8Block applies to parameters of at least 4,096 elements in
  // all; smaller ones keep fp32 (they cost nothing and are the sensitive ones).
  StateType state_type{StateType::kFloat32};
  // May be in force for no parameter. Others must be, but for "*": a pattern that is not is a typo.
  bool optional{false};
};

// A parameter after layout. The spans stay valid for the optimizer's life. Values are written by
// the owner of the model only before the first step, through Optimizer::set_values when there are
// 16-bit parameters, else also directly.
struct Parameter {
  ParameterSpec spec;
  RouteRule route;
  int group_index{0};                // Into Optimizer::group_names().
  std::span<float> value;            // [prod(shape)] of an fp32 parameter, else empty
  std::span<float> gradient;         // [prod(shape)]; backward accumulates SUMS over tokens into it
  std::span<std::uint16_t> value16;  // [prod(shape)] bits of a 16-bit parameter, else empty
};

}  // namespace muster::optimizer
