// SPDX-License-Identifier: Apache-2.0
// Rows of tensors of any type into and out of tiles, and sums over rows.
#include "kernels/cpu/simd/bits.h"
#include "kernels/cpu/simd/math.h"
#include "kernels/moba/cpu/simd/functions.h"

namespace muster::kernels::MUSTER_SIMD_ISA {

namespace {

template <typename T>
T from_element(float x) {
  return static_cast<T>(x);
}

template <typename T>
T from_element(double x) {
  return static_cast<T>(x);
}

template <typename T>
T from_element(std::uint16_t bits) {
  const std::uint32_t word = static_cast<std::uint32_t>(bits) << 16U;
  float x;  // NOLINT(cppcoreguidelines-init-variables): the next line writes it
  __builtin_memcpy(&x, &word, sizeof(x));
  return static_cast<T>(x);
}

template <typename T, typename S>
MUSTER_INLINE Pack<T> load_elements(const S* p) {
  if constexpr (sizeof(S) == sizeof(T)) {
    return load<Pack<T>>(p);
  } else if constexpr (sizeof(S) == 2 && sizeof(T) == 4) {
    return load_as<Pack<float>>(p, [](auto x) MUSTER_INLINE_LAMBDA {
      typedef float V __attribute__((vector_size(sizeof(x))));  // NOLINT
      return from_bf16<V>(x);
    });
  } else {
    T lanes[kLanes<T>];
    for (std::int64_t i = 0; i < kLanes<T>; ++i) {
      lanes[i] = from_element<T>(p[i]);
    }
    return load<Pack<T>>(lanes);
  }
}

template <typename T, typename S>
MUSTER_INLINE Pack<T> load_some_elements(const S* p, std::int64_t count) {
  T lanes[kLanes<T>] = {};
  for (std::int64_t i = 0; i < count; ++i) {
    lanes[i] = from_element<T>(p[i]);
  }
  return load<Pack<T>>(lanes);
}

// f(first element, pack) over a row of `dim` elements; the last pack is filled with 0.
template <typename T, typename S, typename F>
MUSTER_INLINE void each_pack(const S* row, std::int64_t dim, F f) {
  std::int64_t c = 0;
  for (; c + kLanes<T> <= dim; c += kLanes<T>) {
    f(c, load_elements<T>(row + c));
  }
  if (c < dim) {
    f(c, load_some_elements<T>(row + c, dim - c));
  }
}

// f(const S*) for the element type S of the rows.
template <typename Void, typename F>
MUSTER_INLINE void with_type(DType type, Void* data, F f) {
  if (type == DType::kFloat32) {
    f(static_cast<const float*>(data));
  } else if (type == DType::kBFloat16) {
    f(static_cast<const std::uint16_t*>(data));
  } else {
    f(static_cast<const double*>(data));
  }
}

MUSTER_INLINE void store_elements(std::uint16_t* p, Pack<float> a, std::int64_t count) {
  const auto round = [](int /*lane*/, auto x) MUSTER_INLINE_LAMBDA { return to_bf16(x); };
  if (count >= kLanes<float>) {
    store_as(p, a, round);
    return;
  }
  std::uint16_t lanes[kLanes<float>];
  store_as(lanes, a, round);
  for (std::int64_t i = 0; i < count; ++i) {
    p[i] = lanes[i];
  }
}

template <typename T>
MUSTER_INLINE void store_elements(T* p, Pack<T> a, std::int64_t count) {
  if (count >= kLanes<T>) {
    store(p, a);
  } else {
    store_part(p, a, count);
  }
}

template <typename T, typename S>
void scatter_as(
    const T* from, std::int64_t stride, const T* factors, const MobaTarget& to, std::int64_t dim) {
  for (std::int64_t i = 0; i < to.count; ++i) {
    const auto factor = broadcast<Pack<T>>(factors[i]);
    S* row = static_cast<S*>(to.data) + to.offset(i);
    for (std::int64_t c = 0; c < dim; c += kLanes<T>) {
      store_elements(row + c, load<Pack<T>>(from + i * stride + c) * factor, dim - c);
    }
  }
}

MUSTER_INLINE PackOf<double, 128> widened(Pack<float> a) {
  return {widen(a)};
}

}  // namespace

template <typename T>
void moba_gather(const MobaRows& from, std::int64_t dim, T* to, std::int64_t stride) {
  with_type(from.type, from.data, [&](const auto* data) {
    for (std::int64_t i = 0; i < from.count; ++i) {
      T* row = to + i * stride;
      each_pack<T>(
          data + from.offset(i), dim, [row](std::int64_t c, Pack<T> x) { store(row + c, x); });
    }
  });
}

template <typename T>
void moba_scatter(
    const T* from, std::int64_t stride, const T* factors, const MobaTarget& to, std::int64_t dim) {
  if constexpr (sizeof(T) == 4) {
    if (to.type == DType::kBFloat16) {
      scatter_as<T, std::uint16_t>(from, stride, factors, to, dim);
      return;
    }
  }
  scatter_as<T, T>(from, stride, factors, to, dim);
}

template <typename T>
void moba_add_rows(const T* from, std::int64_t stride, const MobaTarget& to, std::int64_t dim) {
  for (std::int64_t i = 0; i < to.count; ++i) {
    T* row = static_cast<T*>(to.data) + to.offset(i);
    for (std::int64_t c = 0; c < dim; c += kLanes<T>) {
      store(row + c, load<Pack<T>>(row + c) + load<Pack<T>>(from + i * stride + c));
    }
  }
}

template <typename T>
void moba_row_dots(
    const T* a, const T* b, std::int64_t stride, std::int64_t count, std::int64_t dim, T* result) {
  for (std::int64_t i = 0; i < count; ++i) {
    Pack<T> total{};
    for (std::int64_t c = 0; c < dim; c += kLanes<T>) {
      total = total + load<Pack<T>>(a + i * stride + c) * load<Pack<T>>(b + i * stride + c);
    }
    result[i] = sum(total);
  }
}

void moba_mean(const MobaRows& rows, std::int64_t dim, float* to) {
  with_type(rows.type, rows.data, [&](const auto* data) {
    double totals[256] = {};
    for (std::int64_t i = 0; i < rows.count; ++i) {
      const auto* row = data + rows.offset(i);
      if constexpr (sizeof(*row) == sizeof(double)) {
        for (std::int64_t c = 0; c < dim; ++c) {
          totals[c] += from_element<double>(row[c]);
        }
      } else {
        each_pack<float>(row, dim, [&totals](std::int64_t c, Pack<float> x) MUSTER_INLINE_LAMBDA {
          const auto wide = widened(x);
          store(totals + c, load<PackOf<double, 128>>(totals + c) + wide);
        });
      }
    }
    for (std::int64_t c = 0; c < dim; ++c) {
      to[c] = static_cast<float>(totals[c] / static_cast<double>(rows.count));
    }
  });
}

void moba_norms(
    const MobaRows& rows, std::int64_t dim, double* largest_square, std::int64_t* nonfinite) {
  with_type(rows.type, rows.data, [&](const auto* data) {
    for (std::int64_t i = 0; i < rows.count; ++i) {
      const auto* row = data + rows.offset(i);
      double square = 0;
      if constexpr (sizeof(*row) == sizeof(double)) {
        for (std::int64_t c = 0; c < dim; ++c) {
          square += row[c] * row[c];
        }
      } else {
        PackOf<double, 128> total{};
        each_pack<float>(
            row, dim, [&total](std::int64_t /*c*/, Pack<float> x) MUSTER_INLINE_LAMBDA {
              const auto wide = widened(x);
              total = total + wide * wide;
            });
        square = sum(total);
      }
      if (square - square != 0) {
        ++*nonfinite;
      } else if (square > *largest_square) {
        *largest_square = square;
      }
    }
  });
}

#define MUSTER_INSTANTIATE(T)                                                                    \
  template void moba_gather(const MobaRows&, std::int64_t, T*, std::int64_t);                    \
  template void moba_scatter(const T*, std::int64_t, const T*, const MobaTarget&, std::int64_t); \
  template void moba_add_rows(const T*, std::int64_t, const MobaTarget&, std::int64_t);          \
  template void moba_row_dots(const T*, const T*, std::int64_t, std::int64_t, std::int64_t, T*);
MUSTER_INSTANTIATE(float)
MUSTER_INSTANTIATE(double)
#undef MUSTER_INSTANTIATE

}  // namespace muster::kernels::MUSTER_SIMD_ISA
