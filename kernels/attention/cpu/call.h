// SPDX-License-Identifier: Apache-2.0
// A call of attention after its arguments were checked, exact or by blocks; and, for exact
// attention, the layout of queries in panels and the drivers.
#pragma once

#include "kernels/attention/cpu/simd/tiles.h"

#include <muster/common/aligned_buffer.h>
#include <muster/kernels/attention.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace muster::kernels {

struct AttentionSequence {
  std::int64_t q_begin{0};
  std::int64_t queries{0};
  std::int64_t k_begin{0};
  std::int64_t keys{0};

  bool operator==(const AttentionSequence&) const = default;
};

// A problem after its check, with its defaults filled in. `sequences` may leave out some of those
// that the offsets describe: the drivers neither read nor write the rows of the others.
struct AttentionCall {
  DType type{DType::kFloat32};
  std::int64_t heads{0};
  std::int64_t kv_heads{0};
  std::int64_t head_dim{0};
  std::int64_t total_q{0};
  std::int64_t total_k{0};
  std::vector<AttentionSequence> sequences;
  bool causal{true};
  double scale{1};
  double softcap{0};
  const float* bias{nullptr};
  std::int64_t bias_head_stride{0};
  std::int64_t bias_row_stride{0};
  int threads{1};

  [[nodiscard]] std::int64_t group() const { return heads / kv_heads; }
};

// A tensor [tokens, heads, head_dim] with both strides filled in.
struct AttentionTensor {
  void* data{nullptr};
  DType type{DType::kFloat32};
  std::int64_t token_stride{0};
  std::int64_t head_stride{0};

  [[nodiscard]] std::int64_t offset(std::int64_t token, std::int64_t head) const {
    return token * token_stride + head * head_stride;
  }

  [[nodiscard]] void* at(std::int64_t token, std::int64_t head) const {
    return static_cast<char*>(data) +
           offset(token, head) * static_cast<std::int64_t>(size_bytes(type));
  }
};

struct InputTensors {
  AttentionTensor q;
  AttentionTensor k;
  AttentionTensor v;
};

struct OutputTensors {
  AttentionTensor out;
  void* lse{nullptr};
};

struct GradientTensors {
  AttentionTensor out;
  const void* lse{nullptr};
  AttentionTensor dout;
  const void* dlse{nullptr};
  AttentionTensor dq;
  AttentionTensor dk;
  AttentionTensor dv;
};

// Per query head; all of them or none.
struct FlashCounts {
  std::vector<float> max_logit;
  std::vector<std::int64_t> nonfinite_rows;
  std::vector<std::int64_t> nan_rows;  // rows with a NaN logit and no infinite one

  explicit FlashCounts(std::int64_t heads = 0);
  void merge(const FlashCounts& other);
};

// One kv head of one sequence and the query heads that read it. Its rows are (token, head of the
// group), token first, in panels of kFlashLanes.
struct FlashItem {
  AttentionSequence sequence;
  std::int64_t kv_head{0};
  std::int64_t group{1};
  bool causal{true};

  [[nodiscard]] std::int64_t rows() const { return sequence.queries * group; }

  [[nodiscard]] std::int64_t token(std::int64_t row) const {
    return group == 1 ? row : row / group;  // divisions are slow
  }

  [[nodiscard]] std::int64_t head(std::int64_t row) const {
    return group == 1 ? kv_head : kv_head * group + row % group;
  }

  // Keys of the sequence that a row sees: the first ones.
  [[nodiscard]] std::int64_t visible(std::int64_t row) const {
    const std::int64_t last = token(row) + 1 + sequence.keys - sequence.queries;
    return causal ? std::clamp<std::int64_t>(last, 0, sequence.keys) : sequence.keys;
  }
};

// Rows [first, first + count) of an item, at most a panel.
struct FlashSpan {
  std::int64_t first{0};
  std::int64_t count{0};
};

template <typename T>
FlashSpan panel_span(const FlashItem& item, std::int64_t panel) {
  const std::int64_t first = panel * kFlashLanes<T>;
  return {first, std::min(kFlashLanes<T>, item.rows() - first)};
}

template <typename T>
std::int64_t panels_of(const FlashItem& item) {
  return (item.rows() + kFlashLanes<T> - 1) / kFlashLanes<T>;
}

// Element offsets of the rows of a panel in a tensor of queries.
template <typename T>
void query_offsets(
    const FlashItem& item, FlashSpan span, const AttentionTensor& tensor, std::int64_t* offsets) {
  for (std::int64_t i = 0; i < span.count; ++i) {
    const std::int64_t row = span.first + i;
    offsets[i] = tensor.offset(item.sequence.q_begin + item.token(row), item.head(row));
  }
}

// Keys that the rows of a panel see of a tile of `count` keys from `first_key` on. Returns false,
// with nothing written, if every row sees all of them.
template <typename T>
bool tile_limits(
    const FlashItem& item, FlashSpan span, std::int64_t first_key, std::int64_t count, T* limits) {
  if (item.visible(span.first) >= first_key + count) {  // rows see no fewer keys than earlier ones
    return false;
  }
  for (std::int64_t i = 0; i < kFlashLanes<T>; ++i) {
    const std::int64_t row = span.first + std::min(i, span.count - 1);
    limits[i] = static_cast<T>(std::clamp<std::int64_t>(item.visible(row) - first_key, 0, count));
  }
  return true;
}

// Bias of a row of a panel, by key of its sequence.
template <typename T>
void bias_rows(
    const AttentionCall& call, const FlashItem& item, FlashSpan span, const float** rows) {
  for (std::int64_t i = 0; call.bias != nullptr && i < span.count; ++i) {
    const std::int64_t row = span.first + i;
    rows[i] =
        call.bias + item.head(row) * call.bias_head_stride + item.token(row) * call.bias_row_stride;
  }
}

// All (sequence, kv head) pairs.
[[nodiscard]] std::vector<FlashItem> items_of(const AttentionCall& call);

// Keys of a tile: as many as keep weights and operands in the second-level cache.
[[nodiscard]] std::int64_t forward_tile_keys(std::int64_t pair);
inline constexpr std::int64_t kBackwardTileKeys = 128;

// Memory of T that begins on a cache line.
template <typename T>
T* reserve(AlignedBuffer& buffer, std::int64_t count) {
  constexpr auto kFloats = static_cast<std::int64_t>(sizeof(T) / sizeof(float));
  return static_cast<T*>(static_cast<void*>(buffer.reserve(count * kFloats)));
}

constexpr std::int64_t flash_line(std::int64_t count) {
  return flash_round_up(count, 16);
}

// Packed operands of the items in work; a larger buffer is released after the call.
inline constexpr std::int64_t kFlashKeptFloats = std::int64_t{16} << 20;

// Run a checked call on the calling thread and call.threads - 1 more. If `counts` is null, nothing
// is counted.
void flash_forward(
    const AttentionCall& call,
    const InputTensors& in,
    const OutputTensors& out,
    FlashCounts* counts);
void flash_backward(
    const AttentionCall& call, const InputTensors& in, const GradientTensors& gradients);

}  // namespace muster::kernels
