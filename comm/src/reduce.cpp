#include "src/reduce.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>

namespace muster::comm {

namespace {

// One block of every rank plus the accumulator stays in the first and second cache level, so each
// byte crosses the memory bus once per direction.
constexpr std::size_t kBlockBytes = 16384;

struct Sum {
  template <typename T>
  static T apply(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      using U = std::make_unsigned_t<T>;  // Wraps around instead of being undefined.
      return static_cast<T>(static_cast<U>(static_cast<U>(a) + static_cast<U>(b)));
    } else {
      return a + b;
    }
  }
};

struct Max {
  template <typename T>
  static T apply(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) {
      // maxNum: the other one when one is NaN. Written without a branch so that it vectorises.
      return ((a < b) | (a != a)) ? b : a;
    } else {
      return a < b ? b : a;
    }
  }
};

template <typename Op, typename T>
void combine_typed(void* into, const void* from, std::size_t count) {
  T* __restrict__ a = static_cast<T*>(into);
  const T* __restrict__ b = static_cast<const T*>(from);
  for (std::size_t i = 0; i < count; ++i) {
    a[i] = Op::apply(a[i], b[i]);
  }
}

template <typename Op>
void combine_as(void* into, const void* from, std::size_t count, DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return combine_typed<Op, float>(into, from, count);
    case DType::kFloat64:
      return combine_typed<Op, double>(into, from, count);
    case DType::kInt32:
      return combine_typed<Op, std::int32_t>(into, from, count);
    case DType::kInt64:
      return combine_typed<Op, std::int64_t>(into, from, count);
    case DType::kUint8:
      return combine_typed<Op, std::uint8_t>(into, from, count);
  }
}

}  // namespace

void combine(void* into, const void* from, std::size_t count, DType dtype, ReduceOp op) {
  if (op == ReduceOp::kSum) {
    combine_as<Sum>(into, from, count, dtype);
  } else {
    combine_as<Max>(into, from, count, dtype);
  }
}

void reduce_in_order(
    std::span<const std::byte* const> sources,
    std::size_t bytes,
    DType dtype,
    ReduceOp op,
    std::span<std::byte* const> outputs) {
  alignas(64) std::array<std::byte, kBlockBytes> block;
  for (std::size_t at = 0; at < bytes; at += kBlockBytes) {
    const std::size_t part = std::min(kBlockBytes, bytes - at);
    std::memcpy(block.data(), sources[0] + at, part);
    for (const std::byte* source : sources.subspan(1)) {
      combine(block.data(), source + at, part / size_bytes(dtype), dtype, op);
    }
    for (std::byte* output : outputs) {
      std::memcpy(output + at, block.data(), part);
    }
  }
}

}  // namespace muster::comm
