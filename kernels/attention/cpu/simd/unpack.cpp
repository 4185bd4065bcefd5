// SPDX-License-Identifier: Apache-2.0
// Writes results of attention tiles to tensors, and small helpers over rows.
#include "kernels/attention/cpu/simd/functions.h"
#include "kernels/attention/cpu/simd/load.h"

namespace muster::kernels::MUSTER_SIMD_ISA {

namespace {

template <bool kHalf>
MUSTER_INLINE void store_floats(
    const FlashTarget& to, std::int64_t row, std::int64_t first, SquareRow x) {
  const std::int64_t count = to.head_dim - first;
  const std::int64_t offset = row_offset(to, row) + first;
  if constexpr (!kHalf) {
    store_row(static_cast<float*>(to.data) + offset, x, count);
    return;
  }
  auto* place = static_cast<std::uint16_t*>(to.data) + offset;
  const auto halves = narrow_words(to_bf16(x));
  if (count >= kSquare) {
    __builtin_memcpy(place, &halves, sizeof(halves));
    return;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    place[i] = halves[i];
  }
}

// kSquare columns from `lane` on and all of head_dim.
template <bool kHalf>
MUSTER_INLINE void unpack_square(
    const float* from,
    const float* factors,
    const FlashTarget& to,
    std::int64_t lane,
    float* finite) {
  const SquareRow factor = load_native<SquareRow>(factors + lane);
  SquareRow bad{};
  for (std::int64_t d = 0; d < to.head_dim; d += kSquare) {
    SquareRow square[kSquare];
    const float* line = from + d * kFlashLanes<float> + lane;
#pragma GCC unroll 16
    for (std::int64_t i = 0; i < kSquare; ++i) {
      square[i] = SquareRow{};
      if (d + i < to.head_dim) {
        square[i] = load_native<SquareRow>(line + i * kFlashLanes<float>) * factor;
      }
      bad += square[i] - square[i];
    }
    transpose_square(square);
#pragma GCC unroll 16
    for (std::int64_t i = 0; i < kSquare; ++i) {
      if (lane + i < to.count) {
        store_floats<kHalf>(to, lane + i, d, square[i]);
      }
    }
  }
  store_native(finite + lane, bad);
}

// Sums in packs, so that every instruction set sums in the same order.
template <bool kHalf>
MUSTER_INLINE float dot_row(const FlashRows& a, const FlashRows& b, std::int64_t i) {
  SquareRow sums[16 / kSquare] = {};
  std::int64_t d = 0;
  for (; d < a.head_dim; d += 16) {
    for (std::int64_t part = 0; part < 16 && d + part < a.head_dim; part += kSquare) {
      sums[part / kSquare] +=
          load_floats<kHalf>(a, i, d + part) * load_floats<kHalf>(b, i, d + part);
    }
  }
  float lanes[16];
  __builtin_memcpy(lanes, sums, sizeof(lanes));
  for (std::size_t width = 8; width > 0; width /= 2) {
    for (std::size_t k = 0; k < width; ++k) {
      lanes[k] += lanes[k + width];
    }
  }
  return lanes[0];
}

}  // namespace

template <>
void flash_unpack_lanes(
    const float* from, const float* factors, const FlashTarget& to, float* finite) {
  with_type(to.type, [&](auto type) MUSTER_INLINE_LAMBDA {
    for (std::int64_t lane = 0; lane < to.count; lane += kSquare) {
      unpack_square<decltype(type)::kHalf>(from, factors, to, lane, finite);
    }
  });
}

template <>
void flash_unpack_lanes(
    const double* from, const double* factors, const FlashTarget& to, double* finite) {
  for (std::int64_t lane = 0; lane < to.count; ++lane) {
    double* row = static_cast<double*>(to.data) + row_offset(to, lane);
    finite[lane] = 0;
    for (std::int64_t d = 0; d < to.head_dim; ++d) {
      row[d] = from[d * kFlashLanes<double> + lane] * factors[lane];
      finite[lane] += row[d] - row[d];
    }
  }
}

template <>
void flash_unpack_rows(
    const float* from, std::int64_t padded_dim, float factor, const FlashTarget& to) {
  with_type(to.type, [&](auto type) MUSTER_INLINE_LAMBDA {
    for (std::int64_t i = 0; i < to.count; ++i) {
      for (std::int64_t d = 0; d < to.head_dim; d += kSquare) {
        store_floats<decltype(type)::kHalf>(
            to, i, d, load_native<SquareRow>(from + i * padded_dim + d) * factor);
      }
    }
  });
}

template <>
void flash_unpack_rows(
    const double* from, std::int64_t padded_dim, double factor, const FlashTarget& to) {
  for (std::int64_t i = 0; i < to.count; ++i) {
    double* row = static_cast<double*>(to.data) + row_offset(to, i);
    for (std::int64_t d = 0; d < to.head_dim; ++d) {
      row[d] = from[i * padded_dim + d] * factor;
    }
  }
}

template <>
void flash_dots(const FlashRows& a, const FlashRows& b, float* to) {
  with_type(a.type, [&](auto type) MUSTER_INLINE_LAMBDA {
    for (std::int64_t i = 0; i < a.count; ++i) {
      to[i] = dot_row<decltype(type)::kHalf>(a, b, i);
    }
  });
}

template <>
void flash_dots(const FlashRows& a, const FlashRows& b, double* to) {
  for (std::int64_t i = 0; i < a.count; ++i) {
    const auto* left = row_at<double>(a, i);
    const auto* right = row_at<double>(b, i);
    to[i] = 0;
    for (std::int64_t d = 0; d < a.head_dim; ++d) {
      to[i] += left[d] * right[d];
    }
  }
}

template <typename T>
void flash_add(const T* from, std::int64_t count, T* to) {
  for (std::int64_t i = 0; i < count; ++i) {
    to[i] += from[i];
  }
}

template <typename T>
void flash_exponentials(T* x, std::int64_t count) {
  using V = Native<T>;
  for (std::int64_t i = 0; i < count; i += kNativeLanes<T>) {
    T lanes[kNativeLanes<T>];
    for (std::int64_t k = 0; k < kNativeLanes<T>; ++k) {
      lanes[k] = i + k < count ? x[i + k] : T{0};
    }
    store_native(lanes, exp_not_positive(load_native<V>(lanes)));
    for (std::int64_t k = 0; k < kNativeLanes<T> && i + k < count; ++k) {
      x[i + k] = lanes[k];
    }
  }
}

template void flash_add(const float*, std::int64_t, float*);
template void flash_add(const double*, std::int64_t, double*);
template void flash_exponentials(float*, std::int64_t);
template void flash_exponentials(double*, std::int64_t);

}  // namespace muster::kernels::MUSTER_SIMD_ISA
