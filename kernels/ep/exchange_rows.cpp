#include "ep/exchange_rows.h"

#include <bit>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace muster::kernels::ep {

namespace {

float to_float(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

std::uint16_t to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = bits + 0x7FFFU + ((bits >> 16) & 1U);
  // Rounding could carry a NaN's payload away and leave an infinity.
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

#if defined(__SSE2__)

namespace {

// 64 bytes, whole lines: the write-combining buffers go out without reading the line first.
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

}  // namespace muster::kernels::ep
