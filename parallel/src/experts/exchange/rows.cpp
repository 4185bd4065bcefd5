// SPDX-License-Identifier: Apache-2.0
#include "parallel/src/experts/exchange/rows.h"

#include <muster/kernels/backend.h>

#include <bit>
#include <cstring>
#include <string_view>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace muster::parallel::experts {

namespace {

[[gnu::always_inline]] inline float to_float(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

[[gnu::always_inline]] inline std::uint16_t to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = bits + 0x7FFFU + ((bits >> 16) & 1U);
  // Rounding could clear a NaN's payload and leave an infinity.
  const bool is_nan = (bits & 0x7FFFFFFFU) > 0x7F800000U;
  return static_cast<std::uint16_t>((is_nan ? (bits | 0x00400000U) : rounded) >> 16);
}

}  // namespace

void add(float* to, const float* from, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    to[i] += from[i];
  }
}

void add(float* to, const std::uint16_t* from, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    to[i] += to_float(from[i]);
  }
}

void widen(float* to, const std::uint16_t* from, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    to[i] = to_float(from[i]);
  }
}

void narrow(std::uint16_t* to, const float* from, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    to[i] = to_bfloat16(from[i]);
  }
}

namespace {

// Number of sums that stay in registers and the first cache while all rows are added.
constexpr std::size_t kBlock = 128;

[[gnu::always_inline]] inline void sum_block(
    float* to, const RowList<float>& list, std::size_t begin, std::size_t count) {
  std::array<float, kBlock> sums;  // NOLINT(*-member-init): written below, as far as it is read
  for (std::size_t i = 0; i < count; ++i) {
    sums[i] = list.rows[0][begin + i];
  }
  for (std::size_t r = 1; r < list.size; ++r) {
    const float* row = list.rows[r] + begin;
    for (std::size_t i = 0; i < count; ++i) {
      sums[i] += row[i];
    }
  }
  for (std::size_t i = 0; i < count; ++i) {
    to[begin + i] = sums[i];
  }
}

[[gnu::always_inline]] inline void sum_block(
    std::uint16_t* to, const RowList<std::uint16_t>& list, std::size_t begin, std::size_t count) {
  std::array<float, kBlock> sums;  // NOLINT(*-member-init): written below, as far as it is read
  for (std::size_t i = 0; i < count; ++i) {
    sums[i] = to_float(list.rows[0][begin + i]);
  }
  for (std::size_t r = 1; r < list.size; ++r) {
    const std::uint16_t* row = list.rows[r] + begin;
    for (std::size_t i = 0; i < count; ++i) {
      sums[i] += to_float(row[i]);
    }
  }
  for (std::size_t i = 0; i < count; ++i) {
    to[begin + i] = to_bfloat16(sums[i]);
  }
}

template <typename T>
[[gnu::always_inline]] inline void sum_blocks(T* to, const RowList<T>& list, std::size_t count) {
  std::size_t begin = 0;
  for (; begin + kBlock <= count; begin += kBlock) {
    sum_block(to, list, begin, kBlock);
  }
  if (begin < count) {
    sum_block(to, list, begin, count - begin);
  }
}

template <typename T>
using Sum = void (*)(T* to, const RowList<T>& list, std::size_t count);

template <typename T>
void sum_baseline(T* to, const RowList<T>& list, std::size_t count) {
  sum_blocks(to, list, count);
}

#if defined(__x86_64__)
template <typename T>
[[gnu::target("avx2")]] void sum_avx2(T* to, const RowList<T>& list, std::size_t count) {
  sum_blocks(to, list, count);
}

template <typename T>
[[gnu::target("avx512f,avx512bw,avx512vl,avx512dq,prefer-vector-width=512")]] void sum_avx512(
    T* to, const RowList<T>& list, std::size_t count) {
  sum_blocks(to, list, count);
}
#endif

template <typename T>
Sum<T> choose_sum() {
#if defined(__x86_64__)
  const std::string_view isa = kernels::instruction_set();
  if (isa == "avx512") {
    return sum_avx512<T>;
  }
  if (isa == "avx2") {
    return sum_avx2<T>;
  }
#endif
  return sum_baseline<T>;
}

}  // namespace

void sum(float* to, const RowList<float>& list, std::size_t count) {
  static const Sum<float> kChosen = choose_sum<float>();
  kChosen(to, list, count);
}

void sum(std::uint16_t* to, const RowList<std::uint16_t>& list, std::size_t count) {
  static const Sum<std::uint16_t> kChosen = choose_sum<std::uint16_t>();
  kChosen(to, list, count);
}

#if defined(__SSE2__)

namespace {

// Whole lines of 64 bytes, so that the write-combining buffers are flushed without reading the
// line.
void stream_lines(std::byte* to, const std::byte* from, std::size_t lines) {
  auto* target = reinterpret_cast<__m128i*>(to);                // NOLINT
  const auto* source = reinterpret_cast<const __m128i*>(from);  // NOLINT
  for (std::size_t i = 0; i < 4 * lines; i += 4) {
    const __m128i a = _mm_loadu_si128(source + i);
    const __m128i b = _mm_loadu_si128(source + i + 1);
    const __m128i c = _mm_loadu_si128(source + i + 2);
    const __m128i d = _mm_loadu_si128(source + i + 3);
    _mm_stream_si128(target + i, a);
    _mm_stream_si128(target + i + 1, b);
    _mm_stream_si128(target + i + 2, c);
    _mm_stream_si128(target + i + 3, d);
  }
}

}  // namespace

void copy_row(std::byte* to, const std::byte* from, std::size_t bytes, bool past_cache) {
  constexpr std::size_t kLine = 64;
  if (!past_cache || reinterpret_cast<std::uintptr_t>(to) % kLine != 0) {  // NOLINT
    std::memcpy(to, from, bytes);
    return;
  }
  const std::size_t lines = bytes / kLine;
  stream_lines(to, from, lines);
  std::memcpy(to + lines * kLine, from + lines * kLine, bytes % kLine);
}

void finish_copies() {
  _mm_sfence();
}

#else

void copy_row(std::byte* to, const std::byte* from, std::size_t bytes, bool) {
  std::memcpy(to, from, bytes);
}

void finish_copies() {}

#endif

}  // namespace muster::parallel::experts
