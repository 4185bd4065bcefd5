// SPDX-License-Identifier: Apache-2.0
// Exact attention of sequences of one length, without the checks.
#include "kernels/attention/cpu/call.h"

#include <muster/kernels/attention.h>

#include <algorithm>
#include <limits>
#include <type_traits>

namespace muster::kernels {

namespace {

template <typename T>
constexpr DType type_of() {
  return std::is_same_v<T, double> ? DType::kFloat64 : DType::kFloat32;
}

template <typename T>
AttentionCall call_of(const AttentionShape& shape) {
  return {
      .type = type_of<T>(),
      .heads = shape.heads,
      .kv_heads = shape.heads,
      .head_dim = shape.head_dim,
      .total_q = shape.sequence,
      .total_k = shape.sequence,
      .sequences = {{0, shape.sequence, 0, shape.sequence}},
      .causal = true,
      .scale = shape.scale};
}

// Sequence `batch` of [batch, sequence, heads, head_dim].
template <typename T>
AttentionTensor tensor_of(const AttentionShape& shape, const T* data, std::int64_t batch) {
  const std::int64_t stride = shape.heads * shape.head_dim;
  return {
      .data = const_cast<T*>(data) + batch * shape.sequence * stride,
      .type = type_of<T>(),
      .token_stride = stride,
      .head_stride = shape.head_dim};
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
  const AttentionCall call = call_of<T>(shape);
  FlashCounts counts(shape.heads);
  for (std::int64_t b = 0; b < shape.batch && shape.sequence > 0; ++b) {
    flash_forward(
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
    const AttentionShapeGradients<T>& gradients) {
  const AttentionCall call = call_of<T>(shape);
  for (std::int64_t b = 0; b < shape.batch && shape.sequence > 0; ++b) {
    flash_backward(
        call,
        {tensor_of(shape, q, b), tensor_of(shape, k, b), tensor_of(shape, v, b)},
        {.out = tensor_of(shape, gradients.out, b),
         .lse = gradients.lse + b * shape.heads * shape.sequence,
         .dout = tensor_of(shape, gradients.dout, b),
         .dlse = nullptr,
         .dq = tensor_of(shape, gradients.dq, b),
         .dk = tensor_of(shape, gradients.dk, b),
         .dv = tensor_of(shape, gradients.dv, b)});
  }
}

#define MUSTER_INSTANTIATE(T)                                               \
  template void attention_forward(                                          \
      const AttentionShape&, const T*, const T*, const T*, T*, T*, float*); \
  template void attention_backward(                                         \
      const AttentionShape&, const T*, const T*, const T*, const AttentionShapeGradients<T>&);
MUSTER_INSTANTIATE(float)
MUSTER_INSTANTIATE(double)
#undef MUSTER_INSTANTIATE

}  // namespace muster::kernels
