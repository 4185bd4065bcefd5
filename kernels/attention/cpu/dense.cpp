// Sequences of one length: exact attention (flash_call.h) without its checks.
#include "kernels/attention/cpu/call.h"

#include <muster/kernels/attention.h>

#include <algorithm>
#include <limits>
#include <type_traits>

namespace muster::kernels {

namespace {

template <typename T>
FlashCall call_of(const AttentionShape& shape) {
  return {
      .type = std::is_same_v<T, double> ? AttentionType::kFloat64 : AttentionType::kFloat32,
      .heads = shape.heads,
      .kv_heads = shape.heads,
      .head_dim = shape.head_dim,
      .total_q = shape.sequence,
      .sequences = {{0, shape.sequence, 0, shape.sequence}},
      .causal = true,
      .scale = shape.scale};
}

// Sequence `batch` of [batch, sequence, heads, head_dim].
template <typename T>
FlashTensor tensor_of(const AttentionShape& shape, const T* data, std::int64_t batch) {
  const std::int64_t stride = shape.heads * shape.head_dim;
  return {const_cast<T*>(data) + batch * shape.sequence * stride, stride, shape.head_dim};
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
  const FlashCall call = call_of<T>(shape);
  FlashCounts counts(shape.heads);
  for (std::int64_t b = 0; b < shape.batch && shape.sequence > 0; ++b) {
    flash_forward_call<T>(
        call,
        {tensor_of(shape, q, b), tensor_of(shape, k, b), tensor_of(shape, v, b)},
        {tensor_of(shape, out, b), lse + b * shape.heads * shape.sequence},
        &counts);
  }
  for (std::size_t h = 0; h < counts.max_logit.size(); ++h) {
    max_logits[h] =
        counts.nan_rows[h] > 0 ? std::numeric_limits<float>::quiet_NaN() : counts.max_logit[h];
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
  const FlashCall call = call_of<T>(shape);
  for (std::int64_t b = 0; b < shape.batch && shape.sequence > 0; ++b) {
    flash_backward_call<T>(
        call,
        {tensor_of(shape, q, b), tensor_of(shape, k, b), tensor_of(shape, v, b)},
        {.out = tensor_of(shape, out, b),
         .lse = lse + b * shape.heads * shape.sequence,
         .dout = tensor_of(shape, dout, b),
         .dlse = nullptr,
         .dq = tensor_of(shape, dq, b),
         .dk = tensor_of(shape, dk, b),
         .dv = tensor_of(shape, dv, b)});
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
