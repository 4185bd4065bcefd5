// Causal multi-head attention over sequences of one length, on the calling thread: the common case
// of flash_attention.h, by the same kernels.
#pragma once

#include <cstdint>

namespace muster::kernels {

struct AttentionShape {
  std::int64_t batch{0};     // independent sequences
  std::int64_t sequence{0};  // tokens per sequence
  std::int64_t heads{0};
  std::int64_t head_dim{0};
  double scale{0};  // usually 1 / sqrt(head_dim)
};

// q, k, v, out: [batch, sequence, heads, head_dim]; lse: [batch, heads, sequence], natural log.
// max_logits[heads]: exact maximum over batch and visible (i >= j) pairs of scale * q_i . k_j,
// signed, before softmax, found while computing, at no extra pass. NaN or +Inf logits make it NaN /
// +Inf (NaN where there are both). A NaN in q, k or v makes `out` NaN for every token that sees it
// and for no earlier one. A -Inf logit hides its key. A query with both counts as +Inf. Working
// memory per thread: k and v of a sequence once more, packed.
template <typename T>
void attention_forward(
    const AttentionShape& shape,
    const T* q,
    const T* k,
    const T* v,
    T* out,
    T* lse,
    float* max_logits);

// dq, dk, dv overwritten. Working memory per thread: a few times the tensors of a sequence.
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
    T* dv);

}  // namespace muster::kernels
