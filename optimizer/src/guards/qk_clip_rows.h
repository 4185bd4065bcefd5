// SPDX-License-Identifier: Apache-2.0
// Rows of a head in its projection, which may be fused (AttentionLayer::group_stride).
#pragma once

#include <muster/optimizer/qk_clip.h>

#include <cstdint>

namespace muster::optimizer {

// Rows [begin, begin + rows).
struct HeadRows {
  std::int64_t begin{0};
  std::int64_t rows{0};
};

inline int key_heads_of(const AttentionLayer& layer) {
  return layer.kind == AttentionKind::kGroupedQuery ? layer.key_heads : layer.heads;
}

// All rows of a query head; latent attention: nope_dim and then rope_dim of them.
inline HeadRows query_rows(const AttentionLayer& layer, std::int64_t head) {
  if (layer.kind == AttentionKind::kMultiHeadLatent) {
    const std::int64_t rows = std::int64_t{layer.nope_dim} + layer.rope_dim;
    return {layer.query_row_begin + head * rows, rows};
  }
  const std::int64_t group = layer.heads / key_heads_of(layer);
  const std::int64_t stride = layer.group_stride == 0 ? group * layer.head_dim : layer.group_stride;
  return {
      layer.query_row_begin + head / group * stride + head % group * layer.head_dim,
      layer.head_dim};
}

// The key rows of a key head; latent attention: without the value rows that follow them.
inline HeadRows key_rows(const AttentionLayer& layer, std::int64_t key_head) {
  if (layer.kind == AttentionKind::kMultiHeadLatent) {
    const std::int64_t stride = std::int64_t{layer.nope_dim} + layer.value_dim;
    return {layer.key_row_begin + key_head * stride, layer.nope_dim};
  }
  const std::int64_t stride = layer.group_stride == 0 ? layer.head_dim : layer.group_stride;
  return {layer.key_row_begin + key_head * stride, layer.head_dim};
}

}  // namespace muster::optimizer
