// SPDX-License-Identifier: Apache-2.0
// Loops over the elements of rows. bf16 elements are std::uint16_t; sums are fp32.
#pragma once

#include <muster/parallel/experts/plan.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace muster::parallel::experts {

[[nodiscard]] inline float* float32(std::byte* row) {
  return reinterpret_cast<float*>(row);  // NOLINT
}

[[nodiscard]] inline const float* float32(const std::byte* row) {
  return reinterpret_cast<const float*>(row);  // NOLINT
}

[[nodiscard]] inline std::uint16_t* bfloat16(std::byte* row) {
  return reinterpret_cast<std::uint16_t*>(row);  // NOLINT
}

[[nodiscard]] inline const std::uint16_t* bfloat16(const std::byte* row) {
  return reinterpret_cast<const std::uint16_t*>(row);  // NOLINT
}

// Copies of fewer bytes than this in all stay in the caches and are written through them.
inline constexpr std::size_t kPastCacheBytes = std::size_t{8} << 20;

// to[i] += from[i]
void add(float* to, const float* from, std::size_t count);
void add(float* to, const std::uint16_t* from, std::size_t count);

void widen(float* to, const std::uint16_t* from, std::size_t count);

// Rounds to nearest even and keeps NaN.
void narrow(std::uint16_t* to, const float* from, std::size_t count);

// Rows of one token, at most kEpTopKMax.
template <typename T>
struct RowList {
  std::array<const T*, kEpTopKMax> rows{};
  std::size_t size{0};

  void push(const T* row) { rows[size++] = row; }
};

// to[i] = ((row 0 + row 1) + row 2) + ..., at least one row; `to` may be row 0. bf16 is summed in
// fp32 and rounded once. The same bits on every instruction set.
void sum(float* to, const RowList<float>& list, std::size_t count);
void sum(std::uint16_t* to, const RowList<std::uint16_t>& list, std::size_t count);

// Copies a row that another core will read. With `past_cache` the row bypasses this core's caches,
// for copies larger than they are; `finish_copies` must follow before a barrier.
void copy_row(std::byte* to, const std::byte* from, std::size_t bytes, bool past_cache);
void finish_copies();

}  // namespace muster::parallel::experts
