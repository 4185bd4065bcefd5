// SPDX-License-Identifier: Apache-2.0
// One tile of exact attention at a time, forward and backward, compiled once per instruction set:
// what full attention (attention.h) and block-sparse attention (moba.h) are made of.
//
// A panel is kFlashLanes<T> queries side by side, one to a lane: any queries that read the same kv
// head, of one or of several query heads, in any order. Scores are kept transposed, [key][lane], so
// that maximum, exp, sum and correction of the online softmax are vertical, and so that the tile of
// weights is the right operand of the next product as it stands: out^T[d][lane] += v^T[d][key]
// weights[key][lane]. Lanes see the first limits[lane] keys of a tile; what lies beyond is neither
// used nor, but for the rest of a pack, computed.
//
// Operands are packed in the order in which the inner loop reads them. Left operands come in panels
// of kFlashRows lines, right ones in panels of kFlashLanes. A unit is one element, or two
// neighbours along the sum where the machine multiplies pairs of bf16 (`pair` is 2; T is float and
// holds the bits of both).
//
// Numbers of a lane do not depend on the other lanes, nor on where in the panel it lies.
// Thread-safety: functions of their arguments.
#pragma once

#include <muster/common/dtype_enum.h>

#include <cstdint>

namespace muster::kernels {

inline constexpr std::int64_t kFlashPacks = 3;
template <typename T>
inline constexpr std::int64_t kFlashPackLanes = 64 / static_cast<std::int64_t>(sizeof(T));
template <typename T>
inline constexpr std::int64_t kFlashLanes = kFlashPacks* kFlashPackLanes<T>;
inline constexpr std::int64_t kFlashRows = 8;
inline constexpr std::int64_t kFlashKeys = 256;  // of a tile, at most
inline constexpr std::int64_t kFlashPanels = 4;  // of a backward tile, at most

constexpr std::int64_t flash_round_up(std::int64_t count, std::int64_t multiple) {
  return (count + multiple - 1) / multiple * multiple;
}

// Row i, `head_dim` elements of `type`, begins offsets[i] (null: i * stride) elements from `data`.
struct FlashRows {
  DType type{DType::kFloat32};
  const void* data{nullptr};
  const std::int64_t* offsets{nullptr};
  std::int64_t stride{0};
  std::int64_t count{0};
  std::int64_t head_dim{0};
};

// The same for results.
struct FlashTarget {
  DType type{DType::kFloat32};
  void* data{nullptr};
  const std::int64_t* offsets{nullptr};
  std::int64_t stride{0};
  std::int64_t count{0};
  std::int64_t head_dim{0};
};

// Transformation of q . k before the softmax.
template <typename T>
struct FlashLogits {
  T scale{1};
  T softcap{0};  // 0: none
  // Null: none. Else bias[lane][first_key + j] is added to the logit of key j of the tile.
  const float* const* bias{nullptr};
  std::int64_t first_key{0};
};

// Running softmax of a panel over the keys so far; start with -inf, 0, 0.
template <typename T>
struct alignas(64) FlashState {
  T max[kFlashLanes<T>];    // of the logits that entered the softmax, NaN ones left out
  T logit[kFlashLanes<T>];  // of the logits before softcap, NaN ones left out
  T sum[kFlashLanes<T>];    // of exp(logit - max), NaN where a logit was NaN or +inf
};

template <typename T>
struct FlashForwardTile {
  const T* queries{nullptr};  // pack_lanes
  std::int64_t lanes{0};      // that exist
  const T* limits{nullptr};   // [kFlashLanes] keys that a lane sees; null: all
  const T* keys{nullptr};     // pack_keys of k
  const T* values{nullptr};   // pack_across of v
  bool values_finite{true};   // what pack_across returned
  std::int64_t count{0};      // keys, at most kFlashKeys
  std::int64_t head_dim{0};
  FlashLogits<T> logits;
  T* weights{nullptr};  // scratch [round_up(count, kFlashRows)][kFlashLanes]
  FlashState<T>* state{nullptr};
  T* gathered{nullptr};  // out^T, [round_up(head_dim, kFlashRows)][kFlashLanes], start with 0
};

// Up to kFlashPanels panels against one tile of keys. Per-panel arrays follow one another.
template <typename T>
struct FlashBackwardTile {
  std::int64_t panels{0};
  std::int64_t lanes{0};          // of the last panel; the others are full
  const T* queries{nullptr};      // pack_lanes of q
  const T* douts{nullptr};        // pack_lanes of dout
  const T* query_rows{nullptr};   // pack_along of q, padded_dim wide
  const T* dout_rows{nullptr};    // pack_along of dout
  const T* lse{nullptr};          // [panels][kFlashLanes]; +inf: no weight
  const T* delta{nullptr};        // [panels][kFlashLanes] out . dout - dlse
  const T* limits{nullptr};       // [panels][kFlashLanes] or null, as above
  const T* keys{nullptr};         // pack_keys of k
  const T* values{nullptr};       // pack_keys of v
  const T* keys_across{nullptr};  // pack_across of k, finite only
  std::int64_t count{0};
  std::int64_t head_dim{0};
  std::int64_t padded_dim{0};  // head_dim in whole packs
  FlashLogits<T> logits;       // bias: [panels * kFlashLanes]
  T* weights{nullptr};         // 3 * scratch [panels][round_up(count, kFlashRows)][kFlashLanes]
  T* dq{nullptr};              // += dq^T, [panels][round_up(head_dim, kFlashRows)][kFlashLanes]
  T* dk{nullptr};              // += [round_up(count, kFlashRows)][padded_dim]
  T* dv{nullptr};              // +=
};

template <typename T>
struct FlashTable {
  const char* path{nullptr};  // as attention_path()
  std::int64_t pair{1};       // elements in a unit

  // Right operand over head_dim: [units(head_dim)][kFlashLanes], 0 in lanes that do not exist.
  void (*pack_lanes)(const FlashRows& rows, T* to){nullptr};
  // Left operand over head_dim: [panels of kFlashRows keys][units(head_dim)][kFlashRows].
  void (*pack_keys)(const FlashRows& rows, T* to){nullptr};
  // Left operand over keys: [panels of kFlashRows of head_dim][units(round_up(keys, kFlashRows))]
  // [kFlashRows]. `finite_only`: non-finite elements become 0. Returns whether all were finite.
  bool (*pack_across)(const FlashRows& rows, bool finite_only, T* to){nullptr};
  // Right operand over queries: [units(kFlashLanes)][padded_dim], finite only, 0 in lanes that do
  // not exist.
  bool (*pack_along)(const FlashRows& rows, std::int64_t padded_dim, T* to){nullptr};

  void (*forward)(const FlashForwardTile<T>& tile){nullptr};
  void (*backward)(const FlashBackwardTile<T>& tile){nullptr};

  // Row i of `to` = column i of from[head_dim][kFlashLanes] times factors[i]. finite[i] = 0 where
  // all of the row is finite, else NaN.
  void (*unpack_lanes)(const T* from, const T* factors, const FlashTarget& to, T* finite){nullptr};
  // Row i of `to` = factor * from[i][padded_dim].
  void (*unpack_rows)(const T* from, std::int64_t padded_dim, T factor, const FlashTarget& to){
      nullptr};
  // to[i] = a row i . b row i.
  void (*dots)(const FlashRows& a, const FlashRows& b, T* to){nullptr};
  // to += from
  void (*add)(const T* from, std::int64_t count, T* to){nullptr};
  // x = exp(x) for x <= 0.
  void (*exponentials)(T* x, std::int64_t count){nullptr};

  [[nodiscard]] std::int64_t units(std::int64_t elements) const {
    return (elements + pair - 1) / pair;
  }

  // Sizes in T.
  [[nodiscard]] std::int64_t lanes_size(std::int64_t head_dim) const {
    return units(head_dim) * kFlashLanes<T>;
  }

  [[nodiscard]] std::int64_t keys_size(std::int64_t keys, std::int64_t head_dim) const {
    return flash_round_up(keys, kFlashRows) * units(head_dim);
  }

  [[nodiscard]] std::int64_t across_size(std::int64_t keys, std::int64_t head_dim) const {
    return flash_round_up(head_dim, kFlashRows) * units(flash_round_up(keys, kFlashRows));
  }

  [[nodiscard]] std::int64_t along_size(std::int64_t padded_dim) const {
    return units(kFlashLanes<T>) * padded_dim;
  }
};

// The tiles for problems of a type on this machine: T double for kFloat64, else float.
// MUSTER_KERNELS_ISA=baseline|avx2|avx512 asks for lesser ones (avx512: without AVX512_BF16).
template <typename T>
[[nodiscard]] const FlashTable<T>& flash_table(DType type);

}  // namespace muster::kernels
