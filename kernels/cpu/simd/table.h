// The hot loops, compiled once per instruction set and picked when the program starts.
//
// Signatures as in the public headers; pointers instead of containers, see pack.h.
#pragma once

#include <muster/kernels/layers.h>
#include <muster/kernels/statistics.h>

#include <cstdint>

namespace muster::kernels {

// One head of one sequence. Rows of q, k, v, out are `stride` elements apart.
template <typename T>
struct AttentionHead {
  std::int64_t sequence{0};
  std::int64_t head_dim{0};
  std::int64_t stride{0};
  T scale{0};
  const T* q{nullptr};
  const T* k{nullptr};
  const T* v{nullptr};
};

template <typename T>
struct AttentionGradients {
  const T* out{nullptr};
  const T* lse{nullptr};
  const T* dout{nullptr};
  T* dq{nullptr};
  T* dk{nullptr};
  T* dv{nullptr};
};

template <typename T>
struct KernelTable {
  decltype(&rms_norm_forward<T>) rms_norm_forward;
  decltype(&rms_norm_backward<T>) rms_norm_backward;
  decltype(&swiglu_forward<T>) swiglu_forward;
  decltype(&swiglu_backward<T>) swiglu_backward;
  decltype(&cross_entropy<T>) cross_entropy;

  // angles[sequence, 2, head_dim / 2]: cosines, then sines, of a position. `sign` -1 rotates back.
  void (*rope)(
      T* x,
      std::int64_t tokens,
      std::int64_t heads,
      std::int64_t head_dim,
      std::int64_t sequence,
      const T* angles,
      T sign);

  // scores[rows, columns] = softmax of each row.
  void (*softmax)(const T* logits, T* scores, std::int64_t rows, std::int64_t columns);
  T (*dot)(const T* a, const T* b, std::int64_t count);
  // y = beta * y + alpha * x; beta 0 overwrites.
  void (*scale_add)(T alpha, const T* x, T beta, T* y, std::int64_t count);

  // Returns the maximum logit. `scratch`: 64-byte aligned, of the sizes given below.
  T (*attention_forward)(const AttentionHead<T>& head, T* out, T* lse, T* scratch);
  void (*attention_backward)(
      const AttentionHead<T>& head, const AttentionGradients<T>& gradients, T* scratch);
};

struct OptimizerTable {
  void (*statistics)(const float* values, std::int64_t count, TensorStatistics& result);
  void (*norm_and_nonfinite)(const float* values, std::int64_t count, NormAndNonfinite& result);
};

// Queries, and keys, of one tile of attention.
inline constexpr std::int64_t kAttentionTile = 64;

// head_dim rounded up to whole packs, for rows that lie along it.
template <typename T>
constexpr std::int64_t padded_head_dim(std::int64_t head_dim) {
  constexpr std::int64_t kWidth = 64 / static_cast<std::int64_t>(sizeof(T));
  return (head_dim + kWidth - 1) / kWidth * kWidth;
}

// Elements: q^T and the tile of scores, the tile of out, v of the whole head.
template <typename T>
constexpr std::int64_t attention_forward_scratch(std::int64_t head_dim, std::int64_t sequence) {
  return (head_dim + kAttentionTile) * kAttentionTile +
         (kAttentionTile + sequence) * padded_head_dim<T>(head_dim);
}

// Elements: q^T, dout^T and two tiles; tiles of q, dout and dq; k, dk and dv of the whole head.
template <typename T>
constexpr std::int64_t attention_backward_scratch(std::int64_t head_dim, std::int64_t sequence) {
  return (2 * head_dim + 2 * kAttentionTile) * kAttentionTile +
         3 * (kAttentionTile + sequence) * padded_head_dim<T>(head_dim);
}

// The table for this machine; MUSTER_KERNELS_ISA=baseline|avx2|avx512 asks for a lesser one.
template <typename T>
[[nodiscard]] const KernelTable<T>& kernel_table();

[[nodiscard]] const OptimizerTable& optimizer_table();

// "baseline", "avx2" or "avx512".
[[nodiscard]] const char* instruction_set();

}  // namespace muster::kernels
