// SPDX-License-Identifier: Apache-2.0
// Packs rows of q, k, v and dout for the tiles of attention.
#include "kernels/attention/cpu/simd/functions.h"
#include "kernels/attention/cpu/simd/load.h"

namespace muster::kernels::MUSTER_SIMD_ISA {

namespace {

// kSquare rows from `row` on, transposed: line u holds unit first + u of each.
template <typename Math, bool kHalf>
MUSTER_INLINE void load_square(
    const FlashRows& rows, std::int64_t row, std::int64_t first, SquareRow (&square)[kSquare]) {
  if (row + kSquare <= rows.count) {
#pragma GCC unroll 16
    for (std::int64_t i = 0; i < kSquare; ++i) {
      square[i] = load_units<Math, kHalf>(rows, row + i, first);
    }
  } else {
#pragma GCC unroll 16
    for (std::int64_t i = 0; i < kSquare; ++i) {
      square[i] =
          row + i < rows.count ? load_units<Math, kHalf>(rows, row + i, first) : SquareRow{};
    }
  }
  transpose_square(square);
}

template <typename Math>
constexpr std::int64_t units_of(std::int64_t elements) {
  return (elements + Math::kPair - 1) / Math::kPair;
}

[[maybe_unused]] double element(const FlashRows& rows, std::int64_t i, std::int64_t d) {
  return i < rows.count && d < rows.head_dim ? row_at<double>(rows, i)[d] : 0.0;
}

[[maybe_unused]] bool is_finite(double x) {
  return x - x == 0;
}

}  // namespace

template <typename Math>
void flash_pack_lanes(const FlashRows& rows, typename Math::Scalar* to) {
  using T = typename Math::Scalar;
  const std::int64_t units = units_of<Math>(rows.head_dim);
  if constexpr (sizeof(T) == sizeof(double)) {
    for (std::int64_t u = 0; u < units; ++u) {
      for (std::int64_t i = 0; i < kFlashLanes<T>; ++i) {
        to[u * kFlashLanes<T> + i] = element(rows, i, u);
      }
    }
  } else {
    with_type(rows.type, [&](auto type) MUSTER_INLINE_LAMBDA {
      for (std::int64_t lane = 0; lane < kFlashLanes<T>; lane += kSquare) {
        for (std::int64_t u = 0; u < units; u += kSquare) {
          SquareRow square[kSquare];
          load_square<Math, decltype(type)::kHalf>(rows, lane, u, square);
          float* place = to + u * kFlashLanes<T> + lane;
#pragma GCC unroll 16
          for (std::int64_t i = 0; i < kSquare; ++i) {
            if (u + i < units) {
              store_native(place + i * kFlashLanes<T>, square[i]);
            }
          }
        }
      }
    });
  }
}

namespace {

// Line `line` of a panel of kFlashRows, and where a square is wider than a panel the next one's.
template <typename T>
MUSTER_INLINE void store_lines(T* place, std::int64_t next_panel, bool both, SquareRow values) {
  if constexpr (kSquare > kFlashRows) {
    typedef float HalfRow __attribute__((vector_size(2 * kSquare)));  // NOLINT
    HalfRow parts[2];
    __builtin_memcpy(parts, &values, sizeof(values));
    store_native(place, parts[0]);
    if (both) {
      store_native(place + next_panel, parts[1]);
    }
  } else {
    store_native(place, values);
  }
}

}  // namespace

template <typename Math>
void flash_pack_keys(const FlashRows& rows, typename Math::Scalar* to) {
  using T = typename Math::Scalar;
  const std::int64_t units = units_of<Math>(rows.head_dim);
  const std::int64_t padded = flash_round_up(rows.count, kFlashRows);
  if constexpr (sizeof(T) == sizeof(double)) {
    for (std::int64_t j = 0; j < padded; ++j) {
      for (std::int64_t u = 0; u < units; ++u) {
        to[(j / kFlashRows * units + u) * kFlashRows + j % kFlashRows] = element(rows, j, u);
      }
    }
  } else {
    with_type(rows.type, [&](auto type) MUSTER_INLINE_LAMBDA {
      const std::int64_t panel = units * kFlashRows;
      for (std::int64_t j = 0; j < padded; j += kSquare) {
        for (std::int64_t u = 0; u < units; u += kSquare) {
          SquareRow square[kSquare];
          load_square<Math, decltype(type)::kHalf>(rows, j, u, square);
          float* place = to + j / kFlashRows * panel + u * kFlashRows + j % kFlashRows;
          const bool both = j + kFlashRows < padded;
#pragma GCC unroll 16
          for (std::int64_t i = 0; i < kSquare; ++i) {
            if (u + i < units) {
              store_lines(place + i * kFlashRows, panel, both, square[i]);
            }
          }
        }
      }
    });
  }
}

namespace {

// kSquare elements of rows `row` and, in pairs, row + 1, from `first` on, as units over the rows.
template <typename Math, bool kHalf>
MUSTER_INLINE SquareRow load_down(
    const FlashRows& rows, std::int64_t row, std::int64_t first, bool finite_only, SquareRow& bad) {
  const auto one = [&](std::int64_t i) MUSTER_INLINE_LAMBDA {
    const SquareRow x = i < rows.count ? load_floats<kHalf>(rows, i, first) : SquareRow{};
    const SquareRow finite = keep_finite(x, bad);
    return finite_only ? finite : x;
  };
  if constexpr (Math::kPair == 2) {
    const auto low = Words<SquareRow>(one(row)) >> 16U;
    const auto high = Words<SquareRow>(one(row + 1));
    return SquareRow(low | high);
  } else {
    return one(row);
  }
}

}  // namespace

template <typename Math>
bool flash_pack_across(const FlashRows& rows, bool finite_only, typename Math::Scalar* to) {
  using T = typename Math::Scalar;
  const std::int64_t keys = flash_round_up(rows.count, kFlashRows);
  const std::int64_t units = units_of<Math>(keys);
  const std::int64_t dims = flash_round_up(rows.head_dim, kFlashRows);
  if constexpr (sizeof(T) == sizeof(double)) {
    bool finite = true;
    for (std::int64_t d = 0; d < dims; ++d) {
      for (std::int64_t j = 0; j < keys; ++j) {
        const double x = element(rows, j, d);
        finite = finite && is_finite(x);
        to[(d / kFlashRows * units + j) * kFlashRows + d % kFlashRows] =
            finite_only && !is_finite(x) ? 0.0 : x;
      }
    }
    return finite;
  } else {
    SquareRow bad{};
    with_type(rows.type, [&](auto type) MUSTER_INLINE_LAMBDA {
      const std::int64_t panel = units * kFlashRows;
      for (std::int64_t d = 0; d < dims; d += kSquare) {
        float* place = to + d / kFlashRows * panel + d % kFlashRows;
        const bool both = d + kFlashRows < dims;
        for (std::int64_t u = 0; u < units; ++u) {
          const SquareRow line =
              load_down<Math, decltype(type)::kHalf>(rows, u * Math::kPair, d, finite_only, bad);
          store_lines(place + u * kFlashRows, panel, both, line);
        }
      }
    });
    return all_zero(bad);
  }
}

template <typename Math>
bool flash_pack_along(const FlashRows& rows, std::int64_t padded_dim, typename Math::Scalar* to) {
  using T = typename Math::Scalar;
  if constexpr (sizeof(T) == sizeof(double)) {
    bool finite = true;
    for (std::int64_t i = 0; i < kFlashLanes<T>; ++i) {
      for (std::int64_t d = 0; d < padded_dim; ++d) {
        const double x = element(rows, i, d);
        finite = finite && is_finite(x);
        to[i * padded_dim + d] = is_finite(x) ? x : 0.0;
      }
    }
    return finite;
  } else {
    SquareRow bad{};
    with_type(rows.type, [&](auto type) MUSTER_INLINE_LAMBDA {
      for (std::int64_t u = 0; u < units_of<Math>(kFlashLanes<T>); ++u) {
        for (std::int64_t d = 0; d < padded_dim; d += kSquare) {
          store_native(
              to + u * padded_dim + d,
              load_down<Math, decltype(type)::kHalf>(rows, u * Math::kPair, d, true, bad));
        }
      }
    });
    return all_zero(bad);
  }
}

#define MUSTER_INSTANTIATE(Math)                                                \
  template void flash_pack_lanes<Math>(const FlashRows&, Math::Scalar*);        \
  template void flash_pack_keys<Math>(const FlashRows&, Math::Scalar*);         \
  template bool flash_pack_across<Math>(const FlashRows&, bool, Math::Scalar*); \
  template bool flash_pack_along<Math>(const FlashRows&, std::int64_t, Math::Scalar*);
#if defined(__AVX512BF16__)
MUSTER_INSTANTIATE(PairMath)
#else
MUSTER_INSTANTIATE(PlainMath<float>)
MUSTER_INSTANTIATE(PlainMath<double>)
#endif
#undef MUSTER_INSTANTIATE

}  // namespace muster::kernels::MUSTER_SIMD_ISA
