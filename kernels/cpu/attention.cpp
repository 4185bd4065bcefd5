#include "cpu/scratch.h"
#include "cpu/simd/table.h"

#include <muster/kernels/attention.h>

#include <algorithm>
#include <limits>

namespace muster::kernels {

namespace {

std::int64_t token_stride(const AttentionShape& shape) {
  return shape.heads * shape.head_dim;
}

// Offset of (batch, head) in [batch, sequence, heads, head_dim].
std::int64_t head_offset(const AttentionShape& shape, std::int64_t batch, std::int64_t head) {
  return batch * shape.sequence * token_stride(shape) + head * shape.head_dim;
}

template <typename T>
AttentionHead<T> head_of(
    const AttentionShape& shape, std::int64_t offset, const T* q, const T* k, const T* v) {
  return {
      .sequence = shape.sequence,
      .head_dim = shape.head_dim,
      .stride = token_stride(shape),
      .scale = static_cast<T>(shape.scale),
      .q = q + offset,
      .k = k + offset,
      .v = v + offset};
}

}  // namespace

template <typename T>
void attention_forward(
    const AttentionShape& shape,
    const T* q,
    const T* k,
    const T* v,
    T* out,
    T* lse,
    float* max_logits) {
  std::fill_n(max_logits, shape.heads, -std::numeric_limits<float>::infinity());
  T* scratch = thread_scratch<T>(attention_forward_scratch<T>(shape.head_dim, shape.sequence));
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    for (std::int64_t h = 0; h < shape.heads; ++h) {
      const std::int64_t offset = head_offset(shape, b, h);
      const auto largest = static_cast<float>(kernel_table<T>().attention_forward(
          head_of(shape, offset, q, k, v),
          out + offset,
          lse + (b * shape.heads + h) * shape.sequence,
          scratch));
      const bool take = largest > max_logits[h] || largest != largest;
      max_logits[h] = take ? largest : max_logits[h];
    }
  }
}

template <typename T>
void attention_backward(
    const AttentionShape& shape,
    const T* q,
    const T* k,
    const T* v,
    const T* out,
    const T* lse,
    const T* dout,
    T* dq,
    T* dk,
    T* dv) {
  T* scratch = thread_scratch<T>(attention_backward_scratch<T>(shape.head_dim, shape.sequence));
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    for (std::int64_t h = 0; h < shape.heads; ++h) {
      const std::int64_t offset = head_offset(shape, b, h);
      const AttentionGradients<T> gradients{
          .out = out + offset,
          .lse = lse + (b * shape.heads + h) * shape.sequence,
          .dout = dout + offset,
          .dq = dq + offset,
          .dk = dk + offset,
          .dv = dv + offset};
      kernel_table<T>().attention_backward(head_of(shape, offset, q, k, v), gradients, scratch);
    }
  }
}

#define MUSTER_INSTANTIATE(T)                                               \
  template void attention_forward(                                          \
      const AttentionShape&, const T*, const T*, const T*, T*, T*, float*); \
  template void attention_backward(                                         \
      const AttentionShape&,                                                \
      const T*,                                                             \
      const T*,                                                             \
      const T*,                                                             \
      const T*,                                                             \
      const T*,                                                             \
      const T*,                                                             \
      T*,                                                                   \
      T*,                                                                   \
      T*);
MUSTER_INSTANTIATE(float)
MUSTER_INSTANTIATE(double)

}  // namespace muster::kernels
