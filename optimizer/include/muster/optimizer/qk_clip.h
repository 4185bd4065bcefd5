// SPDX-License-Identifier: Apache-2.0
// QK-clip (MuonClip, arXiv 2507.20534): heads whose max attention logit exceeded tau get their
// query and key rows scaled so that the logit would have been tau, after the applied update of the
// same step. Optimizer states are left alone. Formulas for each kind of attention:
// docs/concepts/optimizers.md.
#pragma once

#include <muster/optimizer/optimizer.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace muster::optimizer {

enum class AttentionKind : std::uint8_t { kMultiHead, kGroupedQuery, kMultiHeadLatent };

// Grouped queries share a key. kPerHead: the whole factor on the query head, exact per head, key
// untouched (also the only choice for one key head). kGroupMinimum: the group's smallest gamma on
// all its queries and its key; clips innocent heads of the group too (Megatron-LM's choice).
enum class GroupedClip : std::uint8_t { kPerHead, kGroupMinimum };

// Positions of the heads of one attention layer. Projections are [rows, in].
struct AttentionLayer {
  int layer{0};
  int heads{0};
  int head_dim{0};
  std::string query_parameter;
  std::string key_parameter;

  AttentionKind kind{AttentionKind::kMultiHead};
  int key_heads{0};  // kGroupedQuery; divides heads
  GroupedClip grouped_clip{GroupedClip::kPerHead};
  // For a fused projection, both parameters have the same name and the rows are given here. Query
  // head h begins at query_row_begin + (h / group) * group_stride + (h % group) * head_dim with
  // group = heads / key_heads, key head g at key_row_begin + g * group_stride. group_stride 0: as
  // if separate (group * head_dim for queries, head_dim for keys).
  std::int64_t query_row_begin{0};
  std::int64_t key_row_begin{0};
  std::int64_t group_stride{0};
  // 1-D parameters with one element per row of the projection, scaled with it. Optional.
  std::string query_bias{};
  std::string key_bias{};
  // kMultiHeadLatent: query_parameter is W_uq, per head nope_dim rows and then rope_dim rows;
  // key_parameter is W_ukv, per head nope_dim key rows and then value_dim value rows. The shared
  // rotary key is in no parameter named here and stays as it is.
  int nope_dim{0};
  int rope_dim{0};
  int value_dim{0};
  // Queries or keys are normalised after the projection: the norm cancels every factor.
  bool qk_norm{false};
  double alpha{0.5};  // share of the factor that goes to the query (kMultiHead, kGroupMinimum)
};

// kInvalidArgument naming the layer and the rule it breaks: heads that do not divide, alpha outside
// [0, 1], qk_norm (QK-clip would do nothing there), rows that overrun the parameter, a parameter
// the optimizer does not have.
[[nodiscard]] Status check_attention_layer(const AttentionLayer& layer, Optimizer& optimizer);

// gamma = tau / logit for each head whose logit is finite and > tau, else 1 (zero, negative and
// non-finite maxima never scale anything). `max_logits` [heads], reduced over all ranks.
[[nodiscard]] std::vector<double> qk_clip_gammas(std::span<const double> max_logits, double tau);

// The rows to scale for `gammas` [layer.heads]; factors of 1 are left out.
[[nodiscard]] std::vector<HeadScale> head_scales(
    const AttentionLayer& layer, std::span<const double> gammas);

}  // namespace muster::optimizer
