// A call of exact attention after its arguments were checked: what the drivers of full attention
// read. Also how queries are laid out in panels.
#pragma once

#include "kernels/attention/cpu/simd/tiles.h"

#include <muster/common/aligned_buffer.h>
#include <muster/kernels/flash_attention.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace muster::kernels {

struct FlashSequence {
  std::int64_t q_begin{0};
  std::int64_t q_count{0};
  std::int64_t k_begin{0};
  std::int64_t k_count{0};
};

struct FlashCall {
  AttentionType type{AttentionType::kFloat32};
  std::int64_t heads{0};
  std::int64_t kv_heads{0};
  std::int64_t head_dim{0};
  std::int64_t total_q{0};
  std::vector<FlashSequence> sequences;
  bool causal{true};
  double scale{1};
  double softcap{0};
  const float* bias{nullptr};
  std::int64_t bias_head_stride{0};
  std::int64_t bias_row_stride{0};
  int threads{1};

  [[nodiscard]] std::int64_t group() const { return heads / kv_heads; }
};

// A tensor with both strides filled in.
struct FlashTensor {
  void* data{nullptr};
  std::int64_t token_stride{0};
  std::int64_t head_stride{0};

  [[nodiscard]] std::int64_t offset(std::int64_t token, std::int64_t head) const {
    return token * token_stride + head * head_stride;
  }
};

// Element `offset` of a tensor of the call's type.
inline const void* flash_element(const FlashCall& call, const void* data, std::int64_t offset) {
  const std::int64_t size = call.type == AttentionType::kBFloat16  ? 2
                            : call.type == AttentionType::kFloat64 ? 8
                                                                   : 4;
  return static_cast<const char*>(data) + offset * size;
}

inline void* flash_element(const FlashCall& call, void* data, std::int64_t offset) {
  return const_cast<void*>(flash_element(call, static_cast<const void*>(data), offset));
}

struct FlashInputs {
  FlashTensor q;
  FlashTensor k;
  FlashTensor v;
};

struct FlashOutputs {
  FlashTensor out;
  void* lse{nullptr};
};

struct FlashGradients {
  FlashTensor out;
  const void* lse{nullptr};
  FlashTensor dout;
  const void* dlse{nullptr};
  FlashTensor dq;
  FlashTensor dk;
  FlashTensor dv;
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
  FlashSequence sequence;
  std::int64_t kv_head{0};
  std::int64_t group{1};
  bool causal{true};

  [[nodiscard]] std::int64_t rows() const { return sequence.q_count * group; }

  [[nodiscard]] std::int64_t token(std::int64_t row) const {
    return group == 1 ? row : row / group;  // divisions are slow
  }

  [[nodiscard]] std::int64_t head(std::int64_t row) const {
    return group == 1 ? kv_head : kv_head * group + row % group;
  }

  // Keys of the sequence that a row sees: the first ones.
  [[nodiscard]] std::int64_t visible(std::int64_t row) const {
    const std::int64_t last = token(row) + 1 + sequence.k_count - sequence.q_count;
    return causal ? std::clamp<std::int64_t>(last, 0, sequence.k_count) : sequence.k_count;
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
    const FlashItem& item, FlashSpan span, const FlashTensor& tensor, std::int64_t* offsets) {
  for (std::int64_t i = 0; i < span.count; ++i) {
    const std::int64_t row = span.first + i;
    offsets[i] = tensor.offset(item.sequence.q_begin + item.token(row), item.head(row));
  }
}

// Keys that the rows of a panel see of a tile of `count` keys from `first_key` on. False: all see
// all, and nothing is written.
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
void bias_rows(const FlashCall& call, const FlashItem& item, FlashSpan span, const float** rows) {
  for (std::int64_t i = 0; call.bias != nullptr && i < span.count; ++i) {
    const std::int64_t row = span.first + i;
    rows[i] =
        call.bias + item.head(row) * call.bias_head_stride + item.token(row) * call.bias_row_stride;
  }
}

// All (sequence, kv head) pairs.
[[nodiscard]] std::vector<FlashItem> items_of(const FlashCall& call);

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

// Packed operands of the items in work; what is larger than this is given back after the call.
inline constexpr std::int64_t kFlashKeptFloats = std::int64_t{16} << 20;

template <typename T>
void flash_forward_call(
    const FlashCall& call,
    const FlashInputs& in,
    const FlashOutputs& out,
    FlashCounts* counts);  // null: not wanted

template <typename T>
void flash_backward_call(
    const FlashCall& call, const FlashInputs& in, const FlashGradients& gradients);

}  // namespace muster::kernels
