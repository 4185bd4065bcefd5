// SPDX-License-Identifier: Apache-2.0
// The pieces of a transformer block: RMSNorm, RoPE, SwiGLU, embedding, softmax cross-entropy.
// Conventions as in gemm.h. Parameter gradients are added to, activation gradients overwritten.
#pragma once

#include <cstdint>

namespace muster::kernels {

// y[t, d] = x / sqrt(mean(x^2) + epsilon) * weight; inverse_rms[t] is kept for backward.
template <typename T>
void rms_norm_forward(
    const T* x,
    const T* weight,
    T* y,
    T* inverse_rms,
    std::int64_t tokens,
    std::int64_t dim,
    double epsilon);

// dx overwritten; dweight[d] added to.
template <typename T>
void rms_norm_backward(
    const T* x,
    const T* weight,
    const T* inverse_rms,
    const T* dy,
    T* dx,
    T* dweight,
    std::int64_t tokens,
    std::int64_t dim);

// Rotary position embedding in place, x[tokens, heads, head_dim], pairs (i, i + head_dim/2)
// (the GPT-NeoX form), position of token t is t % sequence. head_dim even. `inverse` rotates back,
// which is the backward pass.
template <typename T>
void rope(
    T* x,
    std::int64_t tokens,
    std::int64_t heads,
    std::int64_t head_dim,
    std::int64_t sequence,
    double base,
    bool inverse);

// y[t, f] = silu(gate) * up
template <typename T>
void swiglu_forward(const T* gate, const T* up, T* y, std::int64_t count);
template <typename T>
void swiglu_backward(const T* gate, const T* up, const T* dy, T* dgate, T* dup, std::int64_t count);

// y[t, d] = table[token[t], d]; backward adds into dtable[vocab, d].
template <typename T>
void embedding_forward(
    const std::int32_t* tokens, const T* table, T* y, std::int64_t count, std::int64_t dim);
template <typename T>
void embedding_backward(
    const std::int32_t* tokens, const T* dy, T* dtable, std::int64_t count, std::int64_t dim);

// Sum over tokens of -log softmax(logits[t])[target[t]] in nats, accumulated in double; targets < 0
// are left out, others must be below vocab. dlogits (may be null, may alias logits) = softmax -
// onehot: the gradient of the SUM.
template <typename T>
double cross_entropy(
    const T* logits,
    const std::int32_t* targets,
    T* dlogits,
    std::int64_t tokens,
    std::int64_t vocab);

// y += x
template <typename T>
void add_in_place(T* y, const T* x, std::int64_t count);

}  // namespace muster::kernels
