// SPDX-License-Identifier: Apache-2.0
// Softmax of rows, and cross-entropy on it.
#include "kernels/cpu/simd/functions.h"
#include "kernels/cpu/simd/math.h"

namespace muster::kernels::MUSTER_SIMD_ISA {

namespace {

template <typename T>
constexpr T kMinusInfinity = -static_cast<T>(__builtin_inff());

template <typename T>
T row_max(const T* row, std::int64_t count) {
  auto largest = broadcast<Pack<T>>(kMinusInfinity<T>);
  std::int64_t i = 0;
  for (; i + kLanes<T> <= count; i += kLanes<T>) {
    largest = max_or_nan(largest, load<Pack<T>>(row + i));
  }
  if (i < count) {
    largest = max_or_nan(largest, load_part(row + i, count - i, kMinusInfinity<T>));
  }
  return max_lane(largest);
}

// exp(row - shift) into `to` unless null (may be `row` itself); returns the sum.
template <typename T>
T row_exp(const T* row, T shift, T* to, std::int64_t count) {
  const auto offset = broadcast<Pack<T>>(shift);
  Pack<T> sums{};
  std::int64_t i = 0;
  for (; i + kLanes<T> <= count; i += kLanes<T>) {
    const auto e = exponential(load<Pack<T>>(row + i) - offset);
    sums = sums + e;
    if (to != nullptr) {
      store(to + i, e);
    }
  }
  if (i < count) {
    const auto e = exponential(load_part(row + i, count - i, kMinusInfinity<T>) - offset);
    sums = sums + e;
    if (to != nullptr) {
      store_part(to + i, e, count - i);
    }
  }
  return sum(sums);
}

}  // namespace

template <typename T>
void softmax(const T* logits, T* scores, std::int64_t rows, std::int64_t columns) {
  for (std::int64_t r = 0; r < rows; ++r, logits += columns, scores += columns) {
    const T total = row_exp(logits, row_max(logits, columns), scores, columns);
    scale_add(T{1} / total, scores, T{0}, scores, columns);
  }
}

template <typename T>
double cross_entropy(
    const T* logits,
    const std::int32_t* targets,
    T* dlogits,
    std::int64_t tokens,
    std::int64_t vocab) {
  double loss = 0;
  for (std::int64_t t = 0; t < tokens; ++t) {
    const T* row = logits + t * vocab;
    T* drow = dlogits == nullptr ? nullptr : dlogits + t * vocab;
    if (targets[t] < 0) {
      for (std::int64_t i = 0; drow != nullptr && i < vocab; ++i) {
        drow[i] = T{0};
      }
      continue;
    }
    const T chosen = row[targets[t]];  // before drow, which may be the same row
    const T largest = row_max(row, vocab);
    const T total = row_exp(row, largest, drow, vocab);
    loss += static_cast<double>(largest) - static_cast<double>(chosen) +
            __builtin_log(static_cast<double>(total));
    if (drow != nullptr) {
      scale_add(T{1} / total, drow, T{0}, drow, vocab);
      drow[targets[t]] -= T{1};
    }
  }
  return loss;
}

#define MUSTER_INSTANTIATE(T)                                      \
  template void softmax(const T*, T*, std::int64_t, std::int64_t); \
  template double cross_entropy(const T*, const std::int32_t*, T*, std::int64_t, std::int64_t);
MUSTER_INSTANTIATE(float)
MUSTER_INSTANTIATE(double)
#undef MUSTER_INSTANTIATE

}  // namespace muster::kernels::MUSTER_SIMD_ISA
