// SPDX-License-Identifier: Apache-2.0
// RMSNorm, RoPE, SwiGLU and the vector primitives of the mixture of experts.
#include "kernels/cpu/simd/functions.h"
#include "kernels/cpu/simd/math.h"

namespace muster::kernels::MUSTER_SIMD_ISA {

namespace {

// body(offset, count) for each pack of an array; count < lanes only in the last one.
template <typename T, typename Body>
MUSTER_INLINE void for_each_pack(std::int64_t count, Body body) {
  std::int64_t i = 0;
  for (; i + kLanes<T> <= count; i += kLanes<T>) {
    body(
        i,
        [](const T* p) MUSTER_INLINE_LAMBDA { return load<Pack<T>>(p); },
        [](T* p, Pack<T> value) MUSTER_INLINE_LAMBDA { store(p, value); });
  }
  if (const std::int64_t rest = count - i; rest > 0) {
    body(
        i,
        [rest](const T* p) MUSTER_INLINE_LAMBDA { return load_part(p, rest, T{0}); },
        [rest](T* p, Pack<T> value) MUSTER_INLINE_LAMBDA { store_part(p, value, rest); });
  }
}

template <typename T>
MUSTER_INLINE Pack<T> sigmoid(Pack<T> x) {
  const auto one = broadcast<Pack<T>>(T{1});
  return one / (one + exponential(Pack<T>{} - x));
}

}  // namespace

template <typename T>
T dot(const T* a, const T* b, std::int64_t count) {
  Pack<T> sums{};
  for_each_pack<T>(count, [&](std::int64_t i, auto read, auto) MUSTER_INLINE_LAMBDA {
    sums = sums + read(a + i) * read(b + i);
  });
  return sum(sums);
}

template <typename T>
void scale_add(T alpha, const T* x, T beta, T* y, std::int64_t count) {
  const auto factor = broadcast<Pack<T>>(alpha);
  const auto keep = broadcast<Pack<T>>(beta);
  if (beta == T{0}) {
    for_each_pack<T>(count, [&](std::int64_t i, auto read, auto write) MUSTER_INLINE_LAMBDA {
      write(y + i, factor * read(x + i));
    });
    return;
  }
  for_each_pack<T>(count, [&](std::int64_t i, auto read, auto write) MUSTER_INLINE_LAMBDA {
    write(y + i, keep * read(y + i) + factor * read(x + i));
  });
}

template <typename T>
void rms_norm_forward(
    const T* x,
    const T* weight,
    T* y,
    T* inverse_rms,
    std::int64_t tokens,
    std::int64_t dim,
    double epsilon) {
  for (std::int64_t t = 0; t < tokens; ++t, x += dim, y += dim) {
    const double mean_square = static_cast<double>(dot(x, x, dim)) / static_cast<double>(dim);
    inverse_rms[t] = static_cast<T>(1.0 / __builtin_sqrt(mean_square + epsilon));
    const auto scale = broadcast<Pack<T>>(inverse_rms[t]);
    for_each_pack<T>(dim, [&](std::int64_t i, auto read, auto write) MUSTER_INLINE_LAMBDA {
      write(y + i, read(x + i) * scale * read(weight + i));
    });
  }
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
  for (std::int64_t t = 0; t < tokens; ++t, x += dim, dy += dim, dx += dim) {
    const auto scale = broadcast<Pack<T>>(inverse_rms[t]);
    Pack<T> projections{};
    for_each_pack<T>(dim, [&](std::int64_t i, auto read, auto write) MUSTER_INLINE_LAMBDA {
      const auto normalised = read(x + i) * scale;
      const auto upstream = read(dy + i);
      write(dweight + i, read(dweight + i) + upstream * normalised);
      projections = projections + upstream * read(weight + i) * normalised;
    });
    const auto mean = broadcast<Pack<T>>(sum(projections) / static_cast<T>(dim));
    for_each_pack<T>(dim, [&](std::int64_t i, auto read, auto write) MUSTER_INLINE_LAMBDA {
      const auto normalised = read(x + i) * scale;
      write(dx + i, (read(dy + i) * read(weight + i) - normalised * mean) * scale);
    });
  }
}

template <typename T>
void rope(
    T* x,
    std::int64_t tokens,
    std::int64_t heads,
    std::int64_t head_dim,
    std::int64_t sequence,
    const T* angles,
    T sign) {
  const std::int64_t half = head_dim / 2;
  const auto direction = broadcast<Pack<T>>(sign);
  for (std::int64_t t = 0; t < tokens; ++t) {
    const T* cosine = angles + (t % sequence) * head_dim;
    const T* sine = cosine + half;
    for (std::int64_t h = 0; h < heads; ++h, x += head_dim) {
      for_each_pack<T>(half, [&](std::int64_t i, auto read, auto write) MUSTER_INLINE_LAMBDA {
        const auto a = read(x + i);
        const auto b = read(x + half + i);
        const auto c = read(cosine + i);
        const auto s = read(sine + i) * direction;
        write(x + i, a * c - b * s);
        write(x + half + i, b * c + a * s);
      });
    }
  }
}

template <typename T>
void swiglu_forward(const T* gate, const T* up, T* y, std::int64_t count) {
  for_each_pack<T>(count, [&](std::int64_t i, auto read, auto write) MUSTER_INLINE_LAMBDA {
    const auto g = read(gate + i);
    write(y + i, g * sigmoid<T>(g) * read(up + i));
  });
}

template <typename T>
void swiglu_backward(
    const T* gate, const T* up, const T* dy, T* dgate, T* dup, std::int64_t count) {
  const auto one = broadcast<Pack<T>>(T{1});
  for_each_pack<T>(count, [&](std::int64_t i, auto read, auto write) MUSTER_INLINE_LAMBDA {
    const auto g = read(gate + i);
    const auto upstream = read(dy + i);
    const auto s = sigmoid<T>(g);
    const auto slope = s * (one + g * (one - s));
    const auto u = read(up + i);
    write(dup + i, upstream * g * s);
    write(dgate + i, upstream * u * slope);
  });
}

#define MUSTER_INSTANTIATE(T)                                                                     \
  template T dot(const T*, const T*, std::int64_t);                                               \
  template void scale_add(T, const T*, T, T*, std::int64_t);                                      \
  template void rms_norm_forward(const T*, const T*, T*, T*, std::int64_t, std::int64_t, double); \
  template void rms_norm_backward(                                                                \
      const T*, const T*, const T*, const T*, T*, T*, std::int64_t, std::int64_t);                \
  template void rope(T*, std::int64_t, std::int64_t, std::int64_t, std::int64_t, const T*, T);    \
  template void swiglu_forward(const T*, const T*, T*, std::int64_t);                             \
  template void swiglu_backward(const T*, const T*, const T*, T*, T*, std::int64_t);
MUSTER_INSTANTIATE(float)
MUSTER_INSTANTIATE(double)
#undef MUSTER_INSTANTIATE

}  // namespace muster::kernels::MUSTER_SIMD_ISA
