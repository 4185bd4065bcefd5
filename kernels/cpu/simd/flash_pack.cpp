// Packs rows of q, k, v and dout for the tiles of attention.
#include "cpu/simd/flash_functions.h"
#include "cpu/simd/flash_load.h"

namespace muster::kernels::MUSTER_SIMD_ISA {

namespace {

// kSquare rows from `row` on, transposed: line u holds unit first + u of each.
template <typename Math>
MUSTER_INLINE void load_square(
    const FlashRows& rows, std::int64_t row, std::int64_t first, SquareRow (&square)[kSquare]) {
  for (std::int64_t i = 0; i < kSquare; ++i) {
    square[i] = row + i < rows.count ? load_units<Math>(rows, row + i, first) : SquareRow{};
  }
  transpose_square(square);
}

template <typename Math>
constexpr std::int64_t units_of(std::int64_t elements) {
  return (elements + Math::kPair - 1) / Math::kPair;
}

double element(const FlashRows& rows, std::int64_t i, std::int64_t d) {
  return i < rows.count && d < rows.head_dim ? row_at<double>(rows, i)[d] : 0.0;
}

bool is_finite(double x) {
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
    for (std::int64_t lane = 0; lane < kFlashLanes<T>; lane += kSquare) {
      for (std::int64_t u = 0; u < units; u += kSquare) {
        SquareRow square[kSquare];
        load_square<Math>(rows, lane, u, square);
        for (std::int64_t i = 0; i < kSquare && u + i < units; ++i) {
          store_row(to + (u + i) * kFlashLanes<T> + lane, square[i], kSquare);
        }
      }
    }
  }
}

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
    constexpr std::int64_t kPart = kSquare < kFlashRows ? kSquare : kFlashRows;
    for (std::int64_t j = 0; j < padded; j += kSquare) {
      for (std::int64_t u = 0; u < units; u += kSquare) {
        SquareRow square[kSquare];
        load_square<Math>(rows, j, u, square);
        for (std::int64_t i = 0; i < kSquare && u + i < units; ++i) {
          for (std::int64_t part = 0; part < kSquare && j + part < padded; part += kPart) {
            const std::int64_t line = j + part;
            float* place =
                to + (line / kFlashRows * units + u + i) * kFlashRows + line % kFlashRows;
            __builtin_memcpy(
                place, reinterpret_cast<const float*>(&square[i]) + part, kPart * sizeof(float));
          }
        }
      }
    }
  }
}

namespace {

// kSquare elements of rows `row` and, in pairs, row + 1, from `first` on, as units over the rows.
template <typename Math>
MUSTER_INLINE SquareRow load_down(
    const FlashRows& rows, std::int64_t row, std::int64_t first, bool finite_only, SquareRow& bad) {
  const auto one = [&](std::int64_t i) MUSTER_INLINE_LAMBDA {
    const SquareRow x = i < rows.count ? load_floats(rows, i, first) : SquareRow{};
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
    constexpr std::int64_t kPart = kSquare < kFlashRows ? kSquare : kFlashRows;
    SquareRow bad{};
    for (std::int64_t d = 0; d < dims; d += kSquare) {
      for (std::int64_t u = 0; u < units; ++u) {
        const SquareRow line = load_down<Math>(rows, u * Math::kPair, d, finite_only, bad);
        for (std::int64_t part = 0; part < kSquare && d + part < dims; part += kPart) {
          float* place =
              to + ((d + part) / kFlashRows * units + u) * kFlashRows + (d + part) % kFlashRows;
          __builtin_memcpy(
              place, reinterpret_cast<const float*>(&line) + part, kPart * sizeof(float));
        }
      }
    }
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
    for (std::int64_t u = 0; u < units_of<Math>(kFlashLanes<T>); ++u) {
      for (std::int64_t d = 0; d < padded_dim; d += kSquare) {
        store_row(
            to + u * padded_dim + d, load_down<Math>(rows, u * Math::kPair, d, true, bad), kSquare);
      }
    }
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

}  // namespace muster::kernels::MUSTER_SIMD_ISA
