// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/simd/table.h"

#include <muster/kernels/layers.h>

#include <cmath>
#include <cstddef>
#include <cstring>
#include <vector>

namespace muster::kernels {

namespace {

// Cosines and sines of positions 0..sequence-1, kept per thread: training asks for the same again
// and again.
template <typename T>
struct RopeAngles {
  std::int64_t head_dim{0};
  std::int64_t sequence{0};
  double base{0};
  std::vector<T> values;  // [sequence, 2, head_dim / 2]

  void fill(std::int64_t dim, std::int64_t length, double angle_base) {
    if (dim == head_dim && length == sequence && angle_base == base) {
      return;
    }
    head_dim = dim;
    sequence = length;
    base = angle_base;
    values.resize(static_cast<std::size_t>(length * dim));
    const std::int64_t half = dim / 2;
    for (std::int64_t i = 0; i < half; ++i) {
      const double frequency =
          std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(dim));
      for (std::int64_t t = 0; t < length; ++t) {
        const double angle = static_cast<double>(t) * frequency;
        values[static_cast<std::size_t>(t * dim + i)] = static_cast<T>(std::cos(angle));
        values[static_cast<std::size_t>(t * dim + half + i)] = static_cast<T>(std::sin(angle));
      }
    }
  }
};

}  // namespace

template <typename T>
void rms_norm_forward(
    const T* x,
    const T* weight,
    T* y,
    T* inverse_rms,
    std::int64_t tokens,
    std::int64_t dim,
    double epsilon) {
  kernel_table<T>().rms_norm_forward(x, weight, y, inverse_rms, tokens, dim, epsilon);
}

template <typename T>
void rms_norm_backward(
    const T* x,
    const T* weight,
    const T* inverse_rms,
    const T* dy,
    T* dx,
    T* dweight,
    std::int64_t tokens,
    std::int64_t dim) {
  kernel_table<T>().rms_norm_backward(x, weight, inverse_rms, dy, dx, dweight, tokens, dim);
}

template <typename T>
void rope(
    T* x,
    std::int64_t tokens,
    std::int64_t heads,
    std::int64_t head_dim,
    std::int64_t sequence,
    double base,
    bool inverse) {
  if (tokens == 0 || heads == 0 || head_dim == 0) {
    return;
  }
  thread_local RopeAngles<T> angles;
  angles.fill(head_dim, sequence, base);
  kernel_table<T>().rope(
      x, tokens, heads, head_dim, sequence, angles.values.data(), inverse ? T{-1} : T{1});
}

template <typename T>
void swiglu_forward(const T* gate, const T* up, T* y, std::int64_t count) {
  kernel_table<T>().swiglu_forward(gate, up, y, count);
}

template <typename T>
void swiglu_backward(
    const T* gate, const T* up, const T* dy, T* dgate, T* dup, std::int64_t count) {
  kernel_table<T>().swiglu_backward(gate, up, dy, dgate, dup, count);
}

template <typename T>
void embedding_forward(
    const std::int32_t* tokens, const T* table, T* y, std::int64_t count, std::int64_t dim) {
  if (dim == 0) {
    return;
  }
  for (std::int64_t t = 0; t < count; ++t) {
    std::memcpy(y + t * dim, table + tokens[t] * dim, static_cast<std::size_t>(dim) * sizeof(T));
  }
}

template <typename T>
void embedding_backward(
    const std::int32_t* tokens, const T* dy, T* dtable, std::int64_t count, std::int64_t dim) {
  const auto& kernels = kernel_table<T>();
  for (std::int64_t t = 0; t < count; ++t) {
    kernels.scale_add(T{1}, dy + t * dim, T{1}, dtable + tokens[t] * dim, dim);
  }
}

template <typename T>
double cross_entropy(
    const T* logits,
    const std::int32_t* targets,
    T* dlogits,
    std::int64_t tokens,
    std::int64_t vocab) {
  return kernel_table<T>().cross_entropy(logits, targets, dlogits, tokens, vocab);
}

template <typename T>
void add_in_place(T* y, const T* x, std::int64_t count) {
  kernel_table<T>().scale_add(T{1}, x, T{1}, y, count);
}

#define MUSTER_INSTANTIATE(T)                                                                      \
  template void rms_norm_forward(const T*, const T*, T*, T*, std::int64_t, std::int64_t, double);  \
  template void rms_norm_backward(                                                                 \
      const T*, const T*, const T*, const T*, T*, T*, std::int64_t, std::int64_t);                 \
  template void rope(T*, std::int64_t, std::int64_t, std::int64_t, std::int64_t, double, bool);    \
  template void swiglu_forward(const T*, const T*, T*, std::int64_t);                              \
  template void swiglu_backward(const T*, const T*, const T*, T*, T*, std::int64_t);               \
  template void embedding_forward(const std::int32_t*, const T*, T*, std::int64_t, std::int64_t);  \
  template void embedding_backward(const std::int32_t*, const T*, T*, std::int64_t, std::int64_t); \
  template double cross_entropy(const T*, const std::int32_t*, T*, std::int64_t, std::int64_t);    \
  template void add_in_place(T*, const T*, std::int64_t);
MUSTER_INSTANTIATE(float)
MUSTER_INSTANTIATE(double)
#undef MUSTER_INSTANTIATE

}  // namespace muster::kernels
